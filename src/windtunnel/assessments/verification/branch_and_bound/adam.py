"""Ascent by Adam, whose rate falls from step to step, on tensors whose gradient is at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Measured by the prototype: 238 of 256 subdomains verified in 20 steps, 162 with the usual decay rates of 0.9 and 0.999.
_MOMENTUM, _SQUARES = 0.5, 0.9


@dataclass(slots=True)
class Adam:
    """Ascent on one tensor of any shape. rate: of the first step; each further one has `decay` of that before it."""

    mean: Tensor
    square: Tensor
    rate: float
    decay: float
    steps: int = 0

    @classmethod
    def of(cls, values: Tensor, rate: float, decay: float) -> Adam:
        """Before the first step on `values`."""
        return cls(torch.zeros_like(values), torch.zeros_like(values), rate, decay)

    def step(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return the values after one more step."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - _MOMENTUM)
        self.square.mul_(_SQUARES).addcmul_(gradient, gradient, value=1 - _SQUARES)
        rate = self.rate * (self.decay ** (self.steps - 1) / (1 - _MOMENTUM**self.steps))
        # Not sqrt, which takes six times as long where there are zeros.
        inverse = self.square.div(1 - _SQUARES**self.steps).add_(1e-24).rsqrt_()
        return values.addcmul(self.mean, inverse, value=rate)
