"""Distances between clean and perturbed inputs, per sample, under the field's norms."""

from collections.abc import Callable

import torch
from torch import Tensor

from windtunnel.core.contracts import Norm
from windtunnel.core.scratch import by_samples

# Attacks work in float32: a sample projected on the ball can lie this much beyond it by rounding alone.
RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


_AT_A_TIME = 2**18  # elements that are compared in double precision together: 2 MiB, which stays in the cache


def _by_sample(measure: Callable[[Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """`measure` of the flat differences (n, D) in double precision, a few samples at a time; (N,) float32."""
    return by_samples(lambda x, y: measure((x.double() - y.double()).flatten(1)).float(), a, b, values=_AT_A_TIME)


def linf(a: Tensor, b: Tensor) -> Tensor:
    """Largest absolute change of one element; shapes (N, ...) -> (N,) float32."""
    return _by_sample(lambda change: change.abs().amax(1), a, b)


def l2(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean norm of the change; shapes (N, ...) -> (N,) float32."""
    return _by_sample(lambda change: torch.linalg.vector_norm(change, dim=1), a, b)


def l1(a: Tensor, b: Tensor) -> Tensor:
    """Sum of absolute changes; shapes (N, ...) -> (N,) float32."""
    return _by_sample(lambda change: change.abs().sum(1), a, b)


def l0(a: Tensor, b: Tensor) -> Tensor:
    """Return the number of changed elements, each channel counted separately; shapes (N, ...) -> (N,) float32."""
    return _by_sample(lambda change: (change != 0).sum(1), a, b)


DISTANCE: dict[Norm, Callable[[Tensor, Tensor], Tensor]] = {Norm.LINF: linf, Norm.L2: l2, Norm.L1: l1, Norm.L0: l0}


def distance(norm: Norm, a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of each sample of `a` from the same sample of `b` under `norm`; (N, ...) -> (N,) float32."""
    measured: Tensor = DISTANCE[norm](a, b)
    return measured


def within(distances: Tensor, epsilon: float) -> Tensor:
    """Return True for each distance inside the budget, up to float32 rounding; shape (N,) bool."""
    return distances <= epsilon * (1 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE
