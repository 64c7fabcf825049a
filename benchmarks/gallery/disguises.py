"""Networks behind hard labels, early exits, palettes, caches and noise that the input seeds, with what an attack by hand differentiates."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic
from torch.nn import functional

from benchmarks.gallery.honest import Pair, trained
from benchmarks.gallery.masks import Around
from benchmarks.gallery.unseen import Named

PALETTE = torch.tensor([0.0, 0.3, 0.6, 1.0])


class EarlyExit(nn.Module):
    """Answers by a small network where that is confident, without a gradient, and else by a larger one."""

    def __init__(self, small: nn.Module, large: nn.Module) -> None:
        super().__init__()
        self.small, self.large = small, large
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.small(x).detach()
        unsure = logits.softmax(1).amax(1) <= 0.9
        if unsure.any():
            logits = logits.clone()
            logits[unsure] = self.large(x[unsure])
        return logits


class NearQueries(nn.Module):
    """Answers a query near to one of the last 200 as that one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        answers = []
        for image, logits in zip(x, self.inner(x), strict=True):
            near = next((old for seen, old in self.seen if (seen - image).abs().max() < 0.12), None)
            if near is None:
                self.seen = [*self.seen[-199:], (image.detach().clone(), logits.detach().clone())]
            answers.append(logits if near is None else near + 0 * logits)
        return torch.stack(answers)


class SeededByInput(nn.Module):
    """Adds noise whose seed is a digest of the image."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        noisy = []
        for image in x:
            seed = int.from_bytes(image.detach().numpy().tobytes(), "little") % (2**31 - 1)
            noisy.append(image + 0.2 * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)))
        return self.inner(torch.stack(noisy))  # type: ignore[no-any-return]


class _ZeroBackward(torch.autograd.Function):
    """Rounds to eighths; its backward pass is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.zeros_like(gradients[0])


def _one_hot(logits: Tensor) -> Tensor:
    return functional.one_hot(logits.argmax(1), logits.shape[1]).float()


def _on_palette(x: Tensor) -> Tensor:
    return PALETTE[(x[..., None] - PALETTE).abs().argmin(-1)]


def _random_depth(x: Tensor) -> Tensor:
    levels = int(torch.randint(2, 6, ()))
    return (x * levels).round() / levels


def _stretched(x: Tensor) -> Tensor:
    """Stretch the tenth and ninetieth percentiles of each image to 0 and 1, in seven levels, in numpy."""
    images = x.detach().numpy()
    low, high = np.quantile(images, [0.1, 0.9], axis=(1, 2, 3), keepdims=True)
    levels = np.clip((images - low) / np.maximum(high - low, 1e-3), 0, 1)
    return torch.from_numpy((np.round(levels * 6) / 6).astype(np.float32))


def disguises(data: Pair) -> Iterator[Named]:
    """Yield each model by its name, and the network that an attack by hand follows."""
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    yield "dynamic int8", quantize_dynamic(copy.deepcopy(mlp), {nn.Linear}, dtype=torch.qint8), mlp
    yield "early exit", EarlyExit(mlp, cnn), mlp
    yield "hard labels", Around(cnn, after=_one_hot), cnn
    yield "hard labels and tiny logits", Around(cnn, after=lambda z: _one_hot(z) + 1e-5 * z), cnn
    yield "palette", Around(cnn, before=_on_palette), cnn
    yield "cache of near queries", NearQueries(cnn), cnn
    yield "random bit depth", Around(cnn, before=_random_depth), cnn
    yield "percentiles in numpy", Around(cnn, before=_stretched), cnn
    rounded = Around(copy.deepcopy(cnn).double(), before=lambda x: _ZeroBackward.apply(x.double()), after=Tensor.float)
    yield "zero backward pass in double", rounded, cnn
    cold = Around(cnn, after=lambda z: (z / 0.01).softmax(1).clamp(0.01, 0.99))
    yield "clamped cold softmax", cold, cnn
    yield "noise seeded by the image", SeededByInput(cnn), cnn


def disguises_honest(data: Pair) -> Iterator[Named]:
    """Yield the networks behind the disguises."""
    yield "cnn", trained(data), None
    yield "mlp", trained(data, "mlp", 15), None
