"""Bounds of what float32 rounding does to the inputs of activations: near a jump it decides which value a network takes.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, chapter 3: a sum of k products in any order is off by at most
k u / (1 - k u) of the sum of their absolute values.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from windtunnel.assessments.verification.branch_and_bound.relu_maxpool_fusion import SKIPPED, name_of

_UNIT = 2.0**-24  # of float32
# Weights are rounded too where verifiers fold normalisation into them, and what cancels inside of it is seen no more.
_FOLDED = 4.0
_SUMS = {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d"}
_ARITHMETIC: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.add,
    "rsub": torch.add,
    "__rsub__": torch.add,
    "mul": torch.mul,
    "div": torch.div,
}


class RoundingErrors(TorchFunctionMode):
    """Runs a network on three rows (magnitude, error, 0): sums of absolute values, and how far off float32 may be."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's own types
        name, kwargs = name_of(func), kwargs or {}
        if name in SKIPPED:
            return None
        args, kwargs = tree_map(_absolute, (args, kwargs))
        if name in _ARITHMETIC:
            args = tuple(abs(value) if isinstance(value, float | int) else value for value in args)
            result = _ARITHMETIC[name](*args)
        else:
            result = func(*_normalised(args) if name == "batch_norm" else args, **kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.ndim < 2 or len(result) != 3:
            return result
        magnitude, error, constant = result.abs()
        terms = _terms(name, args, result)
        return torch.stack([magnitude, error - constant + terms * _UNIT * magnitude, torch.zeros_like(magnitude)])


def jump_error(preactivation: Tensor) -> Tensor:
    """Return by how much each number may be off, (size,), of the three rows that reach an activation."""
    return _FOLDED * preactivation[1].flatten()


def _absolute(value: object) -> object:
    return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value


def _normalised(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of batch_norm with a mean that is added."""
    x, mean, *others = args
    return (x, -mean, *others)


def _terms(name: str, args: tuple[Any, ...], result: Tensor) -> int:
    """Return how many roundings a number of the result is behind."""
    if name in _SUMS:
        return int(args[0].shape[-1] if name[0] in "lmab" else math.prod(args[1].shape[1:])) + 1
    if name.startswith("conv_transpose"):
        return int(math.prod(args[1].shape[:1] + args[1].shape[2:])) + 1
    if isinstance(args[0] if args else None, Tensor) and args[0].numel() > result.numel():
        return int(args[0].numel()) // result.numel() + 1  # means, sums and pooling
    return 6 if name == "batch_norm" else 1
