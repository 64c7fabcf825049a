"""Inspect the input of a model's first layer: two normalisations in a row, which may cost no accuracy, show there."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.core.classifier import Classifier
from windtunnel.evaluation.input_conventions.corrections import normalisations

# Operators with weights: the place of the input among their arguments.
_PLACES = {torch.ops.aten.convolution: 0, torch.ops.aten.linear: 0, torch.ops.aten.mm: 0, torch.ops.aten.addmm: 1}
_ALIKE = 0.01  # means and deviations are rounded differently by different people


def twice_normalised(classifier: Classifier) -> str:
    """Return a sentence where a torch model normalises an image with two of the usual means in a row; empty otherwise.

    A black and a white image tell the affine map that comes before the first layer with weights.
    """
    shape = classifier.input_shape
    if len(shape) != 3:
        return ""
    first_inputs = first_input(classifier, torch.stack([torch.zeros(shape), torch.ones(shape)]))
    if first_inputs is None or first_inputs.numel() != 2 * prod(shape):
        return ""
    black, white = first_inputs.reshape(2, *shape).flatten(2).mean(2)  # also where a linear layer is given flat images
    for first, second, mean, std in _pairs(shape[0]):
        is_mean = torch.allclose(black, mean, atol=_ALIKE * float(1 / std.min()))
        if is_mean and torch.allclose(white - black, 1 / std, rtol=_ALIKE):
            span = f"{float(black.min()):.2f} to {float(white.max()):.2f}"
            return (
                f"the model's first layer is given values from {span}: inputs are normalised with {first} mean and deviation, and "
                f"then again with {second}. Is one normalisation too many inside the model?"
            )
    return ""


def first_input(classifier: Classifier, inputs: Tensor) -> Tensor | None:
    """Return the input of the first convolution or matrix product for `inputs`, float32 on the CPU; None where there is none.

    Read from the operators that run, so that it does not matter which module, or none, holds the weights.
    """
    first = _First()
    with first:
        classifier.logits(inputs)
    return first.given


class _First(TorchDispatchMode):
    """Notes the input of the first convolution or matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.given: Tensor | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        argument_index = _PLACES.get(func.overloadpacket)
        if self.given is None and argument_index is not None:
            self.given = args[argument_index].detach().float().cpu()
        return func(*args, **(kwargs or {}))


def _pairs(channels: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(first, second, what black becomes, the deviation of both) for two normalisations in a row, each (C,)."""
    statistics = {name: torch.tensor(values) for name, values in normalisations(channels).items()}
    for first, (mean, std) in statistics.items():
        for second, (mean_again, std_again) in statistics.items():
            yield first, second, (-mean / std - mean_again) / std_again, std * std_again
