"""The network inside a model: what it applies to images to get logits, without what stands before and after it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor, nn

from windtunnel.core.classifier import Classifier

PROBES = 8  # samples by which the inner network is found and compared with the model
PASSES = 5 * PROBES  # that this takes: three forward, two backward
_EQUAL = 1e-3  # relative difference of logits and gradients below which nothing stands around the inner network


class _Inner(nn.Module):
    """Mean logits of several networks, each at its own affine function of the input's channels."""

    def __init__(self, networks: list[nn.Module], scales: list[Tensor], offsets: list[Tensor]) -> None:
        super().__init__()
        self.networks, self.scales, self.offsets = networks, scales, offsets  # a list: the modules stay the model's own

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        entering = zip(self.networks, self.scales, self.offsets, strict=True)
        logits = [network((scale * x + offset).to(offset.dtype)) for network, scale, offset in entering]
        return torch.stack(logits).mean(0)


def inner_classifier(classifier: Classifier, inputs: Tensor, labels: Tensor) -> Classifier | None:
    """Return the innermost networks of a model that map images to logits, or None where there is none.

    A purifier, a detector or rounding before such a network, and a clamp, a softmax or a detach after it, are left out; a
    normalisation stays. None, too, where the inner network has the model's own logits and gradients, or cannot be called alone.

    Args:
        classifier: The model, with gradients.
        inputs: float32 (n, ...), samples, of which the first `PROBES` are used.
        labels: int64 (n,).

    """
    x, y = inputs[:PROBES].to(classifier.device), labels[:PROBES].to(classifier.device)
    calls = _calls(classifier, x)
    names = [name for name in calls if not any(other.startswith(f"{name}.") for other in calls)]
    if not names:
        return None
    module = classifier.module
    maps = [_channel_map(x, calls[name]) for name in names]
    networks = [module.get_submodule(name) for name in names]
    inner = _Inner(networks, [scale for scale, _ in maps], [offset for _, offset in maps]).eval()
    of_model = _logits_and_gradient(classifier, module, x, y)
    try:
        of_inner = _logits_and_gradient(classifier, inner, x, y)
    except (RuntimeError, TypeError, ValueError):  # a user's part that needs further arguments, or another state
        return None
    is_same = all(
        torch.allclose(a, b, rtol=_EQUAL, atol=_EQUAL * float(a.abs().max()))
        for a, b in zip(of_model, of_inner, strict=True)
    )
    return None if is_same else replace(classifier, module=inner)


def _calls(classifier: Classifier, x: Tensor) -> dict[str, Tensor]:
    """Return the input of the first call of every part of the model that maps images to logits, by the part's name."""
    calls: dict[str, Tensor] = {}

    def entry(name: str) -> object:
        def remember(_: nn.Module, args: tuple[object, ...], output: object) -> None:
            value = args[0] if args else None
            if (
                isinstance(value, Tensor)
                and isinstance(output, Tensor)
                and value.shape[1:] == x.shape[1:]
                and output.shape == (len(value), classifier.num_classes)
                and value.is_floating_point()
            ):
                calls.setdefault(name, value.detach())

        return remember

    with ExitStack() as hooks, torch.no_grad():
        for name, part in classifier.module.named_modules():
            if name and not isinstance(part, torch.jit.ScriptModule):
                hooks.callback(part.register_forward_hook(entry(name)).remove)
        classifier.module(x)
    return calls


def _channel_map(x: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and offset of each channel, (1, C, 1, ...), by which `x` (n, C, ...) is nearest to what enters a network.

    The offset has the dtype of what enters.
    """
    dims = [0, *range(2, x.ndim)]
    if len(entering) != len(x):  # several views of each sample
        scale = x.new_ones(1, x.shape[1], *[1] * (x.ndim - 2))
        return scale, torch.zeros_like(scale).to(entering.dtype)
    mean, entering_mean = x.mean(dims, keepdim=True), entering.mean(dims, keepdim=True)
    variance = (x - mean).square().mean(dims, keepdim=True)
    covariance = ((x - mean) * (entering - entering_mean)).mean(dims, keepdim=True)
    scale = torch.where(variance > 1e-12, covariance / variance.clamp(min=1e-12), 1.0)
    return scale, (entering_mean - scale * mean).to(entering.dtype)


def _logits_and_gradient(classifier: Classifier, module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of `module` at x, and the gradient of their margin; zero where none reaches the input."""
    point = x.clone().requires_grad_()
    logits = module(point)
    try:
        (gradient,) = torch.autograd.grad(classifier.criterion.margin_loss(logits, y).sum(), point)
    except RuntimeError:  # the graph is interrupted, or has an operation without a derivative
        gradient = torch.zeros_like(x)
    return logits.detach().float(), gradient.nan_to_num(0.0, 0.0, 0.0)  # of a branch that is not taken, it may be NaN
