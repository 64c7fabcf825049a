"""What a model's first layer is given: two normalisations in a row, which may cost no accuracy, show there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from windtunnel.core.classifier import Classifier
from windtunnel.evaluation.seen.corrections import normalisations

_LAYERS = (nn.Conv2d, nn.Linear)
_ALIKE = 0.01  # means and deviations are rounded differently by different people


def twice_normalised(classifier: Classifier) -> str:
    """A sentence where a torch model normalises an image with two of the usual means in a row; empty otherwise.

    A black and a white image tell the affine map that comes before the first layer with weights.
    """
    shape = classifier.input_shape
    if len(shape) != 3:
        return ""
    seen = first_input(classifier, torch.stack([torch.zeros(shape), torch.ones(shape)]))
    if seen is None or seen.shape != (2, *shape):
        return ""
    black, white = seen.flatten(2).mean(2)
    for first, second, mean, std in _pairs(shape[0]):
        if torch.allclose(black, mean, atol=_ALIKE * float(1 / std.min())) and torch.allclose(
            white - black, 1 / std, rtol=_ALIKE
        ):
            span = f"{float(black.min()):.2f} to {float(white.max()):.2f}"
            return (
                f"the model's first layer is given values from {span}: inputs are normalised with {first} mean and deviation, and "
                f"then again with {second}. Is one normalisation too many inside the model?"
            )
    return ""


def first_input(classifier: Classifier, inputs: Tensor) -> Tensor | None:
    """What the first convolution or linear layer is given for `inputs`, float32 on the CPU; None where there is no such layer."""
    found: list[Tensor] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        if not found:
            found.append(given[0].detach().float().cpu())

    hooks = [m.register_forward_pre_hook(note) for m in classifier.module.modules() if isinstance(m, _LAYERS)]
    try:
        classifier.logits(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _pairs(channels: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(first, second, what black becomes, the deviation of both) for two normalisations in a row, each (C,)."""
    known = {name: (mean.flatten(), std.flatten()) for name, (mean, std) in normalisations(channels).items()}
    for first, (mean, std) in known.items():
        for second, (mean_again, std_again) in known.items():
            yield first, second, (-mean / std - mean_again) / std_again, std * std_again
