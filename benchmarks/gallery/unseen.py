"""Defences that the adaptive attack was not built on, with the network that an attack by hand differentiates, and honest models."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from benchmarks.gallery.honest import Averaged, Pair, fitted, trained
from benchmarks.gallery.masks import Around, noisy, straight_through

Named = tuple[str, nn.Module, nn.Module | None]
SHIFTS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if abs(dy) + abs(dx) < 2]


class Votes(nn.Module):
    """Counts the classes that an inner network gives to several views of the input; `is_soft` adds their logits in place of them."""

    def __init__(self, inner: nn.Module, views: Callable[[Tensor], list[Tensor]], *, is_soft: bool = False) -> None:
        super().__init__()
        self.inner, self.views, self.is_soft = inner, views, is_soft
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = torch.stack([self.inner(view) for view in self.views(x)])
        if self.is_soft:
            return logits.mean(0)
        return nn.functional.one_hot(logits.argmax(2), logits.shape[2]).float().sum(0)


class RandomMember(nn.Module):
    """Answers by a member that it draws for each sample."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = torch.stack([member(x) for member in self.members], 1)
        return logits[torch.arange(len(x)), torch.randint(len(self.members), (len(x),))]


class Neighbours(nn.Module):
    """Counts the labels of the 5 nearest training images; `width` > 0 weights all of them by a Gaussian of their distance."""

    def __init__(self, images: Tensor, labels: Tensor, classes: int, width: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("images", images.flatten(1))
        self.register_buffer("votes", nn.functional.one_hot(labels, classes).float())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the votes."""
        distances = torch.cdist(x.flatten(1), self.images)
        if self.width:
            return torch.log((-(distances**2) / self.width).exp() @ self.votes + 1e-12)
        return self.votes[distances.topk(5, largest=False).indices].sum(1)


class Spikes(nn.Module):
    """Answers by the mean of 16 random binary images whose expectation is the input (Poisson coding of spiking networks)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        rates = x[:, None].expand(-1, 16, *x.shape[1:])
        return self.inner((torch.rand_like(rates) < rates).float().mean(1))


class Deflection(nn.Module):
    """Replaces random pixels by random neighbours, and blurs (Prakash et al. 2018, arXiv 1801.08926)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        side, moved = x.shape[-1], x.clone()
        for _ in range(16):
            row, column = (int(torch.randint(side, ())) for _ in range(2))
            near = [int(torch.randint(max(0, at - 2), min(side, at + 3), ())) for at in (row, column)]
            moved[..., row, column] = x[..., near[0], near[1]]
        return self.inner(moved)


class QuantisedOperators(nn.Module):
    """A multilayer perceptron of int8 weights and activations, in torch's own quantised operators."""

    def __init__(self, mlp: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        layers = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)]
        self.packed, z = [], inputs.flatten(1)
        for layer in layers:
            weight = torch.quantize_per_tensor(
                layer.weight.detach(), float(layer.weight.abs().max()) / 127, 0, torch.qint8
            )
            after = layer(z).relu() if layer is not layers[-1] else layer(z)
            scales = [
                (float(t.max() - t.min()) / 255 + 1e-9, int(-t.min() * 255 / (t.max() - t.min() + 1e-9)))
                for t in (z, after)
            ]
            self.packed.append((torch.ops.quantized.linear_prepack(weight, layer.bias.detach()), *scales))
            z = after.detach()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        z = torch.quantize_per_tensor(x.flatten(1), *self.packed[0][1], torch.quint8)
        for at, (packed, _, (scale, zero)) in enumerate(self.packed):
            linear = torch.ops.quantized.linear if at == len(self.packed) - 1 else torch.ops.quantized.linear_relu
            z = linear(z, packed, scale, zero)
        return z.dequantize()


def _shifted(x: Tensor) -> list[Tensor]:
    return [x.roll(offset, (-2, -1)) for offset in SHIFTS]


def _noisy(x: Tensor) -> list[Tensor]:
    return [x + 0.15 * torch.randn_like(x) for _ in range(12)]


def _largest_alone(z: Tensor) -> Tensor:
    """Return the largest logit, and zero for the others."""
    best = z.topk(1, 1)
    return torch.zeros_like(z).scatter(1, best.indices, best.values.abs())


def _stochastic(x: Tensor) -> Tensor:
    return (4 * x + torch.rand_like(x)).floor() / 4


def _median_by_scipy(x: Tensor) -> Tensor:
    return torch.from_numpy(ndimage.median_filter(x.detach().numpy(), size=(1, 1, 2, 2))).to(x.dtype)


def _median(x: Tensor) -> Tensor:
    padded = nn.functional.pad(x, (1, 0, 1, 0), mode="reflect")
    windows = padded.unfold(-2, 2, 1).unfold(-2, 2, 1).flatten(-2)
    return windows.sort(-1).values[..., 2]


def _denoised(x: Tensor) -> Tensor:
    """Return images after 10 steps towards less total variation, without a graph."""
    with torch.no_grad():
        return _smoothed(x)


def _smoothed(x: Tensor) -> Tensor:
    y = x
    for _ in range(10):
        change = torch.zeros_like(y)
        for dim in (-1, -2):
            forward = y.diff(dim=dim)
            slope = forward / (forward.square() + 1e-3).sqrt()
            pads = [(0, 1), (1, 0)] if dim == -1 else [(0, 0, 0, 1), (0, 0, 1, 0)]
            change = change + nn.functional.pad(slope, pads[0]) - nn.functional.pad(slope, pads[1])
        y = y + 0.01 * change - 0.1 * (y - x)
    return y


def _hashed_noise(x: Tensor) -> Tensor:
    """Return the input with noise seeded by a hash of its 8-bit values."""
    noise = []
    for image in x.detach():
        digest = hashlib.sha256((image * 255).round().byte().numpy().tobytes()).digest()
        seed = int.from_bytes(digest[:4], "little")
        noise.append(torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)))
    return x + 0.15 * torch.stack(noise)


def _codes(classes: int) -> Tensor:
    return torch.randn(classes, 32, generator=torch.Generator().manual_seed(1)).sign()


def unseen(data: Pair) -> Iterator[Named]:
    """Yield faulty models: name, model, and the network that an attack by hand differentiates (None: the model's own mean gradient)."""
    assessed, train = data
    cnn, mlp, other = trained(data), trained(data, "mlp", 15), trained(data, epochs=4)
    k = assessed.num_classes

    def before(change: Callable[[Tensor], Tensor]) -> nn.Module:
        return Around(cnn, before=change)

    yield "input dropout", before(lambda x: nn.functional.dropout(x, 0.4, training=True)), None
    yield "largest logit alone", Around(cnn, after=_largest_alone), cnn
    yield "stochastic quantisation", before(_stochastic), before(lambda x: straight_through(x, _stochastic(x)))
    yield "median filter of scipy", before(_median_by_scipy), before(_median)
    yield "total variation without a graph", before(_denoised), before(_smoothed)
    yield "softmax in float16", Around(cnn, after=lambda z: (30 * z).half().softmax(1).float()), cnn
    yield "random member", RandomMember(cnn, mlp, other), Averaged(cnn, mlp, other)
    yield "votes of shifted views", Votes(cnn, _shifted), Votes(cnn, _shifted, is_soft=True)
    yield "votes of noisy views", Votes(cnn, _noisy), Votes(cnn, _noisy, is_soft=True)
    yield "nearest neighbours", *(Neighbours(train.inputs, train.targets, k, width) for width in (0.0, 1.0))
    yield (
        "spikes",
        Spikes(cnn),
        before(lambda x: x + (x * (1 - x) / 16).clamp(min=0).detach().sqrt() * torch.randn_like(x)),
    )
    yield "pixel deflection", Deflection(cnn), None
    yield "noise by a digest of 8 bits", before(_hashed_noise), noisy(cnn, 0.15)
    yield "tanh of large logits", Around(cnn, after=lambda z: (50 * z).tanh() + 1e-4 * z), cnn
    codes = _codes(k)
    yield (
        "error-correcting code",
        Around(cnn, after=lambda z: (z @ codes).sign() @ codes.T),
        Around(cnn, after=lambda z: (z @ codes / 10).tanh() @ codes.T),
    )
    rounding = before(lambda x: (x * 7).round() / 7)
    yield "bit depth, traced TorchScript", torch.jit.trace(copy.deepcopy(rounding), assessed.inputs[:2]), cnn
    yield "int8 operators of torch", QuantisedOperators(mlp, train.inputs), mlp
    basis = torch.linalg.svd(train.inputs.flatten(1), full_matrices=False)[2][:20]

    def projected(x: Tensor) -> Tensor:
        return (x.flatten(1) @ basis.T @ basis).view_as(x)

    yield (
        "principal components in numpy",
        before(lambda x: torch.from_numpy(np.asarray(projected(x.detach()).numpy()))),
        before(projected),
    )


class _RowAttention(nn.Module):
    """One block of attention over the rows of the image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.attend = nn.Linear(8, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        rows = self.embed(x.flatten(1).view(-1, 8, 8))
        return self.out(self.norm(rows + self.attend(rows, rows, rows)[0]).mean(1))


def unseen_honest(data: Pair) -> Iterator[Named]:
    """Yield honest models that use operations which others hide behind."""
    k = data[0].num_classes
    cnn = trained(data)
    yield "attention", fitted(_RowAttention(k), data), None
    conv = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.InstanceNorm2d(16),
        nn.Hardswish(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
    ]
    yield (
        "instance norm and hard swish",
        fitted(nn.Sequential(*conv, nn.ReLU6(), nn.Flatten(), nn.LazyLinear(k)), data),
        None,
    )
    yield "median filter with a gradient", Around(cnn, before=_median), None
    yield "clamped pixels", Around(cnn, before=lambda x: (1.2 * x - 0.1).clamp(0, 1)), None
    yield (
        "largest three quarters pooled",
        fitted(nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), _TopPool(), nn.Linear(24, k)), data),
        None,
    )
    yield (
        "float64 inside",
        Around(copy.deepcopy(cnn).double(), before=lambda x: x.double(), after=lambda z: z.float()),
        None,
    )


class _TopPool(nn.Module):
    """Mean of the largest three quarters of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (n, C)."""
        flat = x.flatten(2)
        return flat.topk(flat.shape[2] * 3 // 4, 2).values.mean(2)
