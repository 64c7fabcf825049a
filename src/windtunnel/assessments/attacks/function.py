"""Attack a batch with a function of the user's: `my_attack(model, inputs, labels, budget, seed, **params) -> perturbed`."""

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.core.errors import UserError
from windtunnel.core.references import users_code
from windtunnel.registry.plugins import library_of


def perturb(request: Request, model: nn.Module) -> Tensor:
    """Return the function's perturbed inputs, float32 (B, C, H, W).

    Raises UserError, in one line, where it raises or returns anything but a tensor like the inputs.
    """
    name = request.row.algorithm.name
    attack = library_of("function", "attacks").algorithm(name)
    with users_code(f"attack {name}"):
        result = attack(
            model, request.inputs.clone(), request.labels.clone(), request.budget, request.seed, **request.arguments
        )
    if not isinstance(result, torch.Tensor) or result.shape != request.inputs.shape:
        got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise UserError(f"attack {name} returned {got}, not a tensor {tuple(request.inputs.shape)}")
    return result.to(request.inputs)
