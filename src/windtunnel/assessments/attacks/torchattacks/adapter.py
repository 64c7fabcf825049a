"""torchattacks 3.5.1: the attack's constructor takes everything, its call the batch."""

import contextlib
import io
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torchattacks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.assessments.attacks import settings
from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.rows import STOP_EARLY, AttackRow, Invoker, Targeting
from windtunnel.assessments.attacks.torchattacks.early_stopping import EarlyAPGD, EarlyAPGDT, EarlyFAB, EarlySquare
from windtunnel.assessments.attacks.torchattacks.nearest_fab import NearestFAB

SURROGATE_BATCH = 32
_EARLY = {"APGD": EarlyAPGD, "APGDT": EarlyAPGDT, "FAB": EarlyFAB, "Square": EarlySquare}


def perturb(request: Request, model: nn.Module) -> Tensor:
    """Return the library's perturbed inputs, float32 (B, C, H, W)."""
    call = call_of(request)
    if request.invoke:
        return request.invoke(call, model)
    # RFGSM, LGV and others print as they go.
    with contextlib.redirect_stdout(io.StringIO()):
        attack = _INVOKERS[request.row.invoker](request, call, model)
        attack.set_device(request.inputs.device)  # it looks at the parameters, and a model may have none
        if call.targets is not None:
            attack.set_mode_targeted_by_label(quiet=True)
        perturbed: Tensor = attack(call.inputs, call.labels if call.targets is None else call.targets)
    return perturbed


def call_of(request: Request) -> LibraryCall:
    """Return the library call: everything but the batch goes into the constructor."""
    # LGV: BIM's step as in the paper, epsilon / 10.
    is_lgv = request.row.invoker is Invoker.SURROGATES
    step = {"alpha": (request.budget.epsilon or 0.0) / 10, "steps": 10} if is_lgv else {}
    built = {**step, **_arguments(request, request.row)}
    attack = settings.library_class(request.row)
    if built.pop(STOP_EARLY, False):
        attack = _EARLY[request.row.algorithm.name]
    elif request.row.invoker is Invoker.ANY_DISTANCE:
        attack = NearestFAB
    elif attack is torchattacks.PGD:
        attack = CyclePGD
    return LibraryCall(attack, built, request.inputs, request.labels, _targets(request), {})


def _targets(request: Request) -> Tensor | None:
    if request.aims is not None and request.row.targeting is not Targeting.NO:
        return request.aims
    # Untargeted, JSMA aims at (label + 1) % 10 whatever the number of classes; we say the next of ours.
    return (request.labels + 1) % request.num_classes if request.row.invoker is Invoker.NEXT_CLASS else None


def _arguments(request: Request, row: AttackRow) -> dict[str, object]:
    return {
        **settings.epsilon_argument(row, request.budget.epsilon),
        **settings.norm_argument(row, request.budget.norm),
        **({row.seed: request.seed} if row.seed else {}),
        **({row.classes: request.num_classes} if row.classes else {}),
        **(request.arguments if row is request.row else {}),
    }


def _construct(request: Request, call: LibraryCall, model: nn.Module) -> torchattacks.attack.Attack:
    return call.attack(model, **call.built)


def _many_attacks(request: Request, call: LibraryCall, model: nn.Module) -> torchattacks.attack.Attack:
    from windtunnel.assessments.attacks.table import ROWS

    attacks = []
    for name, params in settings.members_of(
        request.arguments.get("attacks", settings.parameters_of(request.row)["attacks"])
    ):
        row = ROWS[request.row.algorithm.library, name]
        member = settings.settle("attacks", row, params, request.budget, f"params.attacks.{name}").arguments
        attacks.append(settings.library_class(row)(model, **_arguments(request, row), **member))
    return torchattacks.MultiAttack(attacks)


def _surrogates(request: Request, call: LibraryCall, model: nn.Module) -> torchattacks.attack.Attack:
    models = request.arguments.get("nb_models_epoch", 4)
    assert isinstance(models, int)
    # LGV trains on whole batches of an epoch's share: with fewer batches than models it would train on none at all.
    batch_size = max(1, min(SURROGATE_BATCH, len(request.pool[0]) // models))
    loader = DataLoader(TensorDataset(*request.pool), batch_size=batch_size, shuffle=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # LGV trains a deep copy; ours are put back below
    try:
        attack = torchattacks.LGV(model, loader, verbose=False, **call.built)
        attack.set_device(request.inputs.device)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            attack.collect_models()
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
    return attack


_INVOKERS: dict[Invoker, Callable[[Request, LibraryCall, nn.Module], torchattacks.attack.Attack]] = {
    Invoker.PLAIN: _construct,
    Invoker.ANY_DISTANCE: _construct,
    Invoker.NEXT_CLASS: _construct,
    Invoker.MANY_ATTACKS: _many_attacks,
    Invoker.SURROGATES: _surrogates,
}


class CyclePGD(torchattacks.PGD):  # type: ignore[misc]  # torchattacks has no types
    """PGD that stops a sample whose iterate returned bit for bit to an earlier one: its steps repeat for ever.

    The result has the library's bytes.
    With sign steps of constant size the next iterate is a function of this one, if the model is deterministic and its
    gradients do not depend on the other samples of the batch. If x[t] = x[s], then x[T] = x[s + (T - s) mod (t - s)]. A
    cycle is found by Brent's method, which keeps one earlier iterate. Nothing is skipped where random numbers were drawn
    meanwhile. Where half of a batch yields other gradients than the whole, all samples must return at once, and no sample
    leaves the batch.

    Source: the cycles of PGD and their use, arXiv 2503.19347; R. P. Brent 1980, doi:10.1007/BF01933190.

    Attributes:
        gradients: how many gradients of single samples the last call computed.
        loss: from logits (B, K) and labels (B,) to the sum over the samples of what is maximised, ().
    """

    gradients = 0
    loss = staticmethod(partial(cross_entropy, reduction="sum"))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the perturbed inputs, float32 (B, C, H, W).

        Args:
            images: float32 (B, C, H, W) in [0, 1].
            labels: int64 (B,); in targeted mode the target classes.
        """
        images, labels = images.clone().detach().to(self.device), labels.clone().detach().to(self.device)
        sign = -1 if self.targeted else 1
        if self.targeted:
            labels = self.get_target_label(images, labels)
        self.gradients, size = 0, len(images)
        x = images.clone()
        if self.random_start:
            x = torch.clamp(x + torch.empty_like(x).uniform_(-self.eps, self.eps), min=0, max=1)

        def gradient(x: Tensor, rows: Tensor) -> Tensor:
            self.gradients += len(x)
            x = x.detach().requires_grad_()
            # The library's mean over the whole batch, whatever is left of it: a factor may round a gradient to 0.
            cost = sign * (self.loss(self.get_logits(x), labels[rows]) / size)
            return torch.autograd.grad(cost, x)[0]

        result, rows = x.clone(), torch.arange(size, device=x.device)
        last_step = torch.full((size,), self.steps, device=x.device)
        saved, saved_step, generators = x, 0, _generators(x)
        independent: bool | None = None  # None: not compared yet
        can_shrink = True
        for step in range(1, self.steps + 1):
            slope = gradient(x, rows)
            remaining = last_step[rows] >= step
            if can_shrink and 2 * int(remaining.sum()) <= len(rows):
                can_shrink = torch.equal(gradient(x[remaining], rows[remaining]), slope[remaining])
                if can_shrink:
                    x, saved, slope, rows = x[remaining], saved[remaining], slope[remaining], rows[remaining]
            before = x
            x = x.detach() + self.alpha * slope.sign()
            delta = torch.clamp(x - images[rows], min=-self.eps, max=self.eps)
            x = torch.clamp(images[rows] + delta, min=0, max=1).detach()
            returned = (x == saved).flatten(1).all(1) & (last_step[rows] == self.steps)
            if step < self.steps and returned.any() and _generators(x) == generators:
                if independent is None:
                    half = slice((len(x) + 1) // 2)
                    independent = torch.equal(gradient(before[half], rows[half]), slope[half])
                    can_shrink = independent
                if independent or bool((x == saved).all()):
                    last_step[rows[returned]] = step + (self.steps - step) % (step - saved_step)
            ended = last_step[rows] == step
            result[rows[ended]] = x[ended]
            if bool((last_step <= step).all()):
                break
            if step & (step - 1) == 0:  # a power of two
                saved, saved_step, generators = x, step, _generators(x)
        return result


def _generators(x: Tensor) -> tuple[bytes, ...]:
    """Return the states of the random generators that a model may draw from."""
    kind, keys, position, *_ = np.random.get_state()  # noqa: NPY002  a model's own code may use it
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])]
    return (
        *(state.numpy().tobytes() for state in states),
        str((kind, position)).encode() + np.asarray(keys).tobytes(),
        repr(random.getstate()).encode(),
    )
