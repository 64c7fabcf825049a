"""Defences by low precision, codes, votes and filters, with the network that an attack by hand differentiates, and honest models.

Ramsauer et al. 2021, arXiv 2008.02217 (Hopfield); Chen et al. 2022, arXiv 2205.12134 (loss wave); Meng, Chen 2017, arXiv 1705.09064
(reformer and detector); Tomasi, Manduchi 1998 (bilateral filter).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gallery.honest import Averaged, Pair, fitted, trained
from benchmarks.gallery.masks import Around
from benchmarks.gallery.unseen import Named


def in_precision(inner: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a network of the same layers in another float type; its logits have it too."""
    return Around(copy.deepcopy(inner).to(dtype), before=lambda x: x.to(dtype))


class Autocast(nn.Module):
    """Computes in bfloat16 by torch's autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = self.inner(x)
        return logits


class Gated(nn.Module):
    """Answers by the expert that a gate chooses by its largest logit."""

    def __init__(self, gate: nn.Module, *experts: nn.Module) -> None:
        super().__init__()
        self.gate, self.experts = gate, nn.ModuleList(experts)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        gate = self.gate(x)
        choice, logits = gate.argmax(1) % len(self.experts), torch.zeros_like(gate)
        for i, expert in enumerate(self.experts):
            chosen = choice == i
            if chosen.any():
                logits[chosen] = expert(x[chosen])
        return logits


class Hopfield(nn.Module):
    """Moves the image towards stored patterns without a graph, three times."""

    def __init__(self, inner: nn.Module, patterns: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("patterns", patterns.flatten(1))
        self.eval()

    def cleaned(self, x: Tensor) -> Tensor:
        """Return the image that is classified."""
        y = x.flatten(1)
        for _ in range(3):
            weights = (-8.0 * torch.cdist(y, self.patterns) ** 2).softmax(1)
            y = 0.5 * y + 0.5 * weights @ self.patterns
        return y.view_as(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            y = self.cleaned(x)
        return self.inner(y)


class EnergyDetector(nn.Module):
    """Answers by the nearest class mean, without a graph, where the log-sum of the logits is low."""

    def __init__(self, inner: nn.Module, data: Pair) -> None:
        super().__init__()
        train, self.inner = data[1], inner
        self.bar = float(inner(train.inputs).logsumexp(1).detach().quantile(0.1))
        means = [train.inputs[train.targets == c].mean(0) for c in range(data[0].num_classes)]
        self.register_buffer("means", torch.stack(means).flatten(1))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = self.inner(x)
        is_refused = logits.logsumexp(1) < self.bar
        return torch.where(is_refused[:, None], -10 * torch.cdist(x.flatten(1), self.means).detach(), logits)


class IntegerCodes(nn.Module):
    """Counts the bits of a code of each class that the signs of projected logits share; `is_soft` takes their tanh."""

    def __init__(self, inner: nn.Module, classes: int, *, is_soft: bool = False) -> None:
        super().__init__()
        self.inner, self.is_soft = inner, is_soft
        code = torch.randn(classes, 63, generator=torch.Generator().manual_seed(5)) > 0
        self.register_buffer("code", code.long())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the number of equal bits."""
        signs = 2.0 * self.code - 1
        projected = self.inner(x) @ signs
        if self.is_soft:
            return torch.tanh(projected / 10) @ signs.T
        return 63.0 - ((projected > 0).long()[:, None] ^ self.code).sum(2).float()


class DropoutVotes(nn.Module):
    """Answers by the commonest class of 15 passes of a perceptron with dropout; `is_soft` adds the logits of 5."""

    def __init__(self, mlp: nn.Module, *, is_soft: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer in mlp.modules() if isinstance(layer, nn.Linear | nn.ReLU))
        self.is_soft = is_soft
        self.eval()

    def _drawn(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for layer in self.layers:
            h = layer(h)
            if isinstance(layer, nn.ReLU):
                h = functional.dropout(h, 0.3, training=True)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = torch.stack([self._drawn(x) for _ in range(5 if self.is_soft else 15)])
        if self.is_soft:
            return logits.mean(0)
        return logits.argmax(2).mode(0).values.unsqueeze(1).eq(torch.arange(logits.shape[2])).float()


class Census(nn.Module):
    """A perceptron on the comparisons of each pixel with its 8 neighbours; `width` > 0 takes sigmoids of it."""

    def __init__(self, classes: int, width: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 96), nn.ReLU(), nn.Linear(96, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        windows = functional.unfold(functional.pad(x, (1, 1, 1, 1)), 3).view(len(x), 9, *x.shape[-2:])
        rises = torch.cat([windows[:, :4], windows[:, 5:]], 1) - x - 0.15
        return self.inner(torch.sigmoid(rises / self.width) if self.width else (rises > 0).float())


class Stumps(nn.Module):
    """A linear layer on comparisons of 600 random projections with their means; `width` > 0 takes sigmoids of it."""

    def __init__(self, data: Pair, width: float = 0.0) -> None:
        super().__init__()
        self.width, flat = width, data[1].inputs.flatten(1)
        self.register_buffer("projections", torch.randn(64, 600, generator=torch.Generator().manual_seed(2)))
        self.register_buffer("means", flat.mean(0) @ self.projections)
        self.out = nn.Linear(600, data[0].num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        h = x.flatten(1) @ self.projections - self.means
        return self.out(torch.sigmoid(h / self.width) if self.width else (h > 0).to(x.dtype))


class LossWave(nn.Module):
    """The margin of the answer falls, inside of each interval of 4, where that of the network rises."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = self.inner(x)
        best = logits.topk(2, 1)
        margin = best.values[:, 0] - best.values[:, 1]
        wanted = 2 * (margin / 4).floor() * 4 + 4 - margin
        return logits + functional.one_hot(best.indices[:, 0], logits.shape[1]) * (wanted - margin)[:, None]


class Reformer(nn.Module):
    """Answers for the output of an autoencoder, and for a median of shifts where that is far from the image; neither has a graph."""

    def __init__(self, inner: nn.Module, autoencoder: nn.Module, train: Tensor) -> None:
        super().__init__()
        self.inner, self.autoencoder = inner, autoencoder
        self.bar = float(self._errors(autoencoder(train), train).detach().quantile(0.98))
        self.eval()

    @staticmethod
    def _errors(reformed: Tensor, x: Tensor) -> Tensor:
        return (reformed - x).abs().flatten(1).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        reformed = self.autoencoder(x)
        is_far = self._errors(reformed, x) > self.bar
        median = torch.stack([x.roll(shift, -1) for shift in (-1, 0, 1)]).median(0).values
        return torch.where(is_far[:, None], self.inner(median).detach(), self.inner(reformed.detach()))


class RandomWeights(nn.Module):
    """A perceptron whose weights are scaled at random in every call."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer in mlp.modules() if isinstance(layer, nn.Linear | nn.ReLU))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        h = x.flatten(1)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                h = functional.linear(h, layer.weight * (1 + 0.35 * torch.randn_like(layer.weight)), layer.bias)
            else:
                h = layer(h)
        return h


def _ranked(z: Tensor) -> Tensor:
    """Return the ranks of the logits, computed in numpy."""
    return torch.from_numpy(z.detach().float().numpy().argsort(1).argsort(1).astype(np.float32))


def _looked_up(x: Tensor) -> Tensor:
    """Return images of 7 levels, from a table of 256 entries."""
    return ((torch.arange(256.0) / 255 * 6).round() / 6)[(x * 255).round().long()]


def _without_low_bits(x: Tensor) -> Tensor:
    """Return images whose floats have their lowest 21 bits cleared."""
    bits = (x * 0.999 + 1).contiguous().view(torch.int32) & ~((1 << 21) - 1)
    return bits.view(torch.float32) - 1


def _floored_in_place(x: Tensor) -> Tensor:
    return x.clone().mul_(5).add_(0.5).floor_().div_(5)


def _filled(x: Tensor) -> Tensor:
    """Return images of three levels, written by masks."""
    y = x.clone()
    y[y < 0.35] = 0.0
    y.masked_fill_(y >= 0.65, 1.0)
    y[(y > 0) & (y < 1)] = 0.5
    return y


def _bilateral(x: Tensor) -> Tensor:
    """Return the mean of those of the 3x3 neighbours that are alike."""
    windows = functional.unfold(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3)
    neighbours = windows.view(len(x), 1, 9, *x.shape[-2:])
    is_alike = ((neighbours - x[:, :, None]).abs() < 0.3).float()
    return (neighbours * is_alike).sum(2) / is_alike.sum(2)


def _strongest_frequencies(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft2(x)
    bar = spectrum.abs().flatten(1).topk(14, 1).values[:, -1]
    return torch.fft.irfft2(spectrum * (spectrum.abs() >= bar.view(-1, 1, 1, 1)), s=x.shape[-2:])


def _drawn_levels(x: Tensor) -> Tensor:
    """Return one of 6 levels for each pixel, drawn by a hard Gumbel softmax without a graph."""
    levels = torch.linspace(0, 1, 6)
    scores = -60 * (x[..., None] - levels) ** 2
    return (functional.gumbel_softmax(scores, tau=0.1, hard=True).detach() * levels).sum(-1)


def _autoencoder(data: Pair) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))]

    def loss(net: nn.Module, x: Tensor, y: Tensor, done: float) -> Tensor:
        noisy = (x + 0.15 * torch.randn_like(x)).clamp(0, 1)
        return (net(noisy) - x).square().flatten(1).sum(1).mean()

    return fitted(nn.Sequential(*layers), data, 20, loss)


def tricks(data: Pair) -> Iterator[Named]:
    """Yield faulty models: name, model, and the network that an attack by hand differentiates (None: the model's own mean gradient)."""
    assessed, train = data
    cnn, mlp, other = trained(data), trained(data, "mlp", 15), trained(data, epochs=4)
    k = assessed.num_classes

    def before(change: Callable[[Tensor], Tensor]) -> nn.Module:
        return Around(cnn, before=change)

    yield "float16 inside", in_precision(cnn, torch.float16), cnn
    yield "bfloat16 inside", in_precision(cnn, torch.bfloat16), cnn
    yield "autocast", Autocast(cnn), cnn
    tiny = Around(copy.deepcopy(cnn).half(), before=lambda x: x.half(), after=lambda z: (z * 1e-6).float() * 1e6)
    yield "tiny gradients in float16", tiny, cnn
    yield "gated experts", Gated(other, cnn, mlp, other), Averaged(cnn, mlp, other)
    hopfield = Hopfield(cnn, train.inputs[:600])
    yield "Hopfield patterns", hopfield, before(hopfield.cleaned)
    yield "energy detector", EnergyDetector(cnn, data), cnn
    yield "codes of integers", IntegerCodes(cnn, k), IntegerCodes(cnn, k, is_soft=True)
    yield "ranks in numpy", Around(cnn, after=_ranked), cnn
    yield "lookup table", before(_looked_up), cnn
    yield "bits of floats", before(_without_low_bits), cnn
    yield "floor in place", before(_floored_in_place), cnn
    yield "masks filled", before(_filled), cnn
    yield "bilateral filter", before(_bilateral), cnn
    yield "strongest frequencies", before(_strongest_frequencies), cnn
    hard = fitted(Census(k), data, 15)
    soft = copy.deepcopy(hard)
    soft.width = 0.05
    yield "census transform", hard, soft
    hard = fitted(Stumps(data), data)
    soft = copy.deepcopy(hard)
    soft.width = 1.0
    yield "random stumps", hard, soft
    yield "votes of dropout", DropoutVotes(mlp), DropoutVotes(mlp, is_soft=True)
    autoencoder = _autoencoder(data)
    yield "reformer and detector", Reformer(cnn, autoencoder, train.inputs), before(autoencoder)
    yield "loss wave", LossWave(cnn), cnn
    yield "random weights", RandomWeights(mlp), None
    yield "levels drawn by Gumbel", before(_drawn_levels), before(lambda x: x)
    yield "logarithms of 3 at least", Around(cnn, after=lambda z: z.log_softmax(1).clamp(min=-3)), cnn
    yield "two softmaxes", Around(cnn, after=lambda z: (20 * z.softmax(1)).softmax(1)), cnn


def tricks_honest(data: Pair) -> Iterator[Named]:
    """Yield honest models of kinds that the other galleries lack."""
    k = data[0].num_classes
    cnn = trained(data)
    yield "float64 to the logits", in_precision(cnn, torch.float64), None
    yield "bfloat16 to the logits", in_precision(cnn, torch.bfloat16), None
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.GELU()]
    yield "batch norm and GELU", fitted(nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(k)), data), None
    flat = [nn.Flatten(), nn.Linear(64, 128), nn.Hardtanh(), nn.Linear(128, k)]
    yield "hard tanh", fitted(nn.Sequential(*flat), data, 15), None
    yield "adversarially trained network", trained(data, recipe="adversarial", epochs=6), None
    yield "logits 8 times as wide", Around(cnn, after=lambda z: 8 * z), None
