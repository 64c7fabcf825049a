"""How a function of the user's attacks a batch: `my_attack(model, inputs, labels, budget, seed, **params) -> perturbed`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.rows import AT_CALL, AttackRow, Invoker, algorithm
from windtunnel.core.contracts import Capability, Randomness, ThreatModel
from windtunnel.core.errors import UserError
from windtunnel.core.plugins import library_of
from windtunnel.core.references import users_code

ROWS: tuple[AttackRow, ...] = ()  # what there is, the user knows


def row_of(name: str) -> AttackRow:
    """The registry row of the function `module:function`; nothing of the user's is imported.

    White-box, the strongest that it can be, since it is handed the model; a model without gradients is handed over too.
    Its draws from the global streams are seeded.
    """
    row = algorithm("function", name, ThreatModel.WHITE_BOX, None, "custom", Randomness.GLOBAL_RNG)
    row = replace(row, requires=frozenset({Capability.FORWARD}), summary="an attack of the user's own")
    return AttackRow(row, epsilon=AT_CALL, invoker=Invoker.FUNCTION)


def perturb(request: Request, model: nn.Module) -> Tensor:
    """The function's perturbed inputs, float32 (B, C, H, W).

    Raises UserError, in one line, where it raises or returns anything but a tensor like the inputs.
    """
    name = request.row.algorithm.name
    attack = library_of("function", "attacks").algorithm(name)
    with users_code(f"attack {name}"):
        found = attack(
            model, request.inputs.clone(), request.labels.clone(), request.budget, request.seed, **request.arguments
        )
    if not isinstance(found, torch.Tensor) or found.shape != request.inputs.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise UserError(f"attack {name} returned {got}, not a tensor {tuple(request.inputs.shape)}")
    return found.to(request.inputs)
