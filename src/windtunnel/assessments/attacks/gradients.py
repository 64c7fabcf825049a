"""The function that an attack differentiates.

It may be a stand-in where the model's own gradient misleads (BPDA), a mean over draws (EOT), fewer bits.

Athalye et al. 2018, arXiv 1802.00420. Success is always evaluated on the model itself.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from windtunnel.core.errors import UserError
from windtunnel.core.references import resolve, users_code

# The user's own: from the model to what is differentiated in its place, mapping (n, C, H, W) to logits (n, K).
Surrogate = Callable[[nn.Module], Callable[[Tensor], Tensor]]


class ModelWrapper(nn.Module):
    """A module around a model, in eval mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()


class StraightThrough(ModelWrapper):
    """The model's logits with a stand-in's derivative: backward pass differentiable approximation (BPDA)."""

    def __init__(self, model: nn.Module, surrogate: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model)
        self.surrogate = surrogate
        self.eval()  # a stand-in that is a module may be in train mode

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        smooth = self.surrogate(x)
        with torch.no_grad():
            true: Tensor = self.model(x)
        return smooth + (true - smooth).detach()


class MeanOverDraws(ModelWrapper):
    """The mean logits of `draws` calls of a randomised model, and so the mean of their gradients (EOT)."""

    def __init__(self, model: nn.Module, draws: int) -> None:
        super().__init__(model)
        self.draws = draws

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        total: Tensor = self.model(x)
        for _ in range(self.draws - 1):
            total = total + self.model(x)
        return total / self.draws


class InBfloat16(ModelWrapper):
    """The model's logits, computed in bfloat16 where that is safe (autocast): half of the memory, and faster on an accelerator."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, float32 (n, K)."""
        with torch.autocast(x.device.type, torch.bfloat16):
            logits: Tensor = self.model(x)
        return logits.float()


def searched_in(precision: str, model: nn.Module) -> nn.Module:
    """Return the model that a search evaluates: in `bfloat16`, or itself in `float32`."""
    return InBfloat16(model) if precision == "bfloat16" else model


def surrogate_of(where: str, reference: str | None) -> Surrogate | None:
    """Return the function that `adapt: module:function` names; None where there is none. Raises UserError where it is not found."""
    return None if reference is None else cast(Surrogate, resolve(reference, f"{where}.adapt"))


def adapted(where: str, model: nn.Module, surrogate: Surrogate | None) -> nn.Module:
    """Return the model with the derivative of its stand-in; itself where there is none.

    Raises UserError, in one line, for a `surrogate` that raises or returns nothing that can be called.
    """
    if surrogate is None:
        return model
    with users_code(f"{where}.adapt"):
        standin = surrogate(model)
    if not callable(standin):
        raise UserError(f"{where}.adapt: returned a {type(standin).__name__}, not a module or a function of inputs")
    return StraightThrough(model, standin)


def averaged(model: nn.Module, draws: int) -> nn.Module:
    """Return the mean over `draws` calls of the model; itself for one."""
    return MeanOverDraws(model, draws) if draws > 1 else model
