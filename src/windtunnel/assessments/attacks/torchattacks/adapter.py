"""torchattacks 3.5.1: the attack's constructor takes everything, its call the batch."""

import contextlib
import io
from collections.abc import Callable

import torch
import torchattacks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.cycle_pgd import CyclePGD
from windtunnel.assessments.attacks.rows import AttackRow, Invoker, Targeting
from windtunnel.assessments.attacks.settings import (
    epsilon_argument,
    library_class,
    members_of,
    norm_argument,
    parameters_of,
    settle,
)
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance

SURROGATE_BATCH = 32


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
    step = _lgv_step(request) if request.row.invoker is Invoker.SURROGATES else {}
    built = {**step, **_arguments(request, request.row)}
    attack = library_class(request.row)
    if request.row.invoker is Invoker.ANY_DISTANCE:
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
        **epsilon_argument(row, request.budget.epsilon),
        **norm_argument(row, request.budget.norm),
        **({row.seed: request.seed} if row.seed else {}),
        **({row.classes: request.num_classes} if row.classes else {}),
        **(request.arguments if row is request.row else {}),
    }


def _construct(request: Request, call: LibraryCall, model: nn.Module) -> torchattacks.attack.Attack:
    return call.attack(model, **call.built)


def _many_attacks(request: Request, call: LibraryCall, model: nn.Module) -> torchattacks.attack.Attack:
    from windtunnel.assessments.attacks.table import ROWS

    attacks = []
    for name, params in members_of(request.arguments.get("attacks", parameters_of(request.row)["attacks"])):
        row = ROWS[request.row.algorithm.library, name]
        member = settle("attacks", row, params, request.budget, f"params.attacks.{name}").arguments
        attacks.append(library_class(row)(model, **_arguments(request, row), **member))
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


def _lgv_step(request: Request) -> dict[str, object]:
    """BIM's step as in the paper, epsilon / 10."""
    return {"alpha": (request.budget.epsilon or 0.0) / 10, "steps": 10}


_INVOKERS: dict[Invoker, Callable[[Request, LibraryCall, nn.Module], torchattacks.attack.Attack]] = {
    Invoker.PLAIN: _construct,
    Invoker.ANY_DISTANCE: _construct,
    Invoker.NEXT_CLASS: _construct,
    Invoker.MANY_ATTACKS: _many_attacks,
    Invoker.SURROGATES: _surrogates,
}


class NearestFAB(torchattacks.FAB):  # type: ignore[misc]  # torchattacks has no types
    """FAB (Croce, Hein 2020, arXiv 1907.02044) that returns the nearest example of all restarts and targets.

    As in the library, a sample is done once an example lies within epsilon, restarts are drawn inside that ball, and the
    starts depend on the seed alone; so the samples broken within epsilon are the library's. A sample without any example
    comes back as it was.
    """

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the nearest examples found for inputs `x` (n, C, H, W) of labels `y` (n,)."""
        with torch.no_grad():
            nearest, norm = x.clone(), Norm(self.norm)
            right = self.get_logits(x).argmax(1) == y
            reached = torch.where(right, torch.inf, 0.0)
            torch.manual_seed(self.seed)
            for aim in range(2, self.n_target_classes + 2) if self.multi_targeted else [None]:
                self.target_class = aim  # its rank among the logits
                for restart in range(self.n_restarts):
                    indices = (right & (reached > self.eps)).nonzero().flatten()
                    if not len(indices):
                        return nearest
                    run = self.attack_single_run_targeted if self.multi_targeted else self.attack_single_run
                    example = run(x[indices], y[indices], use_rand_start=restart > 0)
                    distances = distance(norm, example, x[indices])
                    closer = (self.get_logits(example).argmax(1) != y[indices]) & (distances < reached[indices])
                    nearest[indices[closer]], reached[indices[closer]] = example[closer], distances[closer]
        return nearest
