"""torchattacks 3.5.1: the attack's constructor takes everything, its call the batch."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import torchattacks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.cycle_pgd import CyclePGD
from windtunnel.assessments.attacks.nearest_fab import NearestFAB
from windtunnel.assessments.attacks.rows import AttackRow, Invoker, Targeting
from windtunnel.assessments.attacks.settings import (
    epsilon_argument,
    library_class,
    members_of,
    norm_argument,
    parameters_of,
    settle,
)

SURROGATE_BATCH = 32


def perturb(request: Request, model: nn.Module) -> Tensor:
    """The library's perturbed inputs, float32 (B, C, H, W)."""
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
