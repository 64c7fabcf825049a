"""Defences by hooks on the graph, counted votes and steps at inference, with the network that an attack by hand differentiates.

Alfarra et al. 2022, arXiv 2103.14347 (anti-adversary layer); Kontschieder et al. 2015 (deep neural decision forests).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from benchmarks.gallery.honest import Pair, fitted, trained
from benchmarks.gallery.masks import Around
from benchmarks.gallery.unseen import Named


class HookedNode(nn.Module):
    """Returns noise for the gradient, by a hook on a node of torch's graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        y = 1.0 * x
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: (torch.randn_like(gradients[0]),))
        logits: Tensor = self.inner(y)
        return logits


class SpoiltMemory(nn.Module):
    """Hands noise to the backward pass in place of the tensors that were saved for it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with saved_tensors_hooks(lambda t: t, lambda t: torch.randn_like(t) if t.is_floating_point() else t):
            logits: Tensor = self.inner(x)
        return logits


class CountedVotes(nn.Module):
    """Counts the classes of five shifted views; `is_soft` adds their probabilities, `has_bins` counts by `torch.bincount`."""

    def __init__(self, inner: nn.Module, *, is_soft: bool = False, has_bins: bool = False) -> None:
        super().__init__()
        self.inner, self.is_soft, self.has_bins = inner, is_soft, has_bins
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the votes."""
        views = [x, *(x.roll(shift, side) for shift in (-1, 1) for side in (-1, -2))]
        logits = torch.stack([self.inner(view) for view in views])
        if self.is_soft:
            return logits.softmax(2).mean(0).clamp(min=1e-12).log()
        classes = logits.argmax(2)
        if self.has_bins:
            return torch.stack([torch.bincount(row, minlength=logits.shape[2]) for row in classes.T]).float()
        votes, rows = torch.zeros_like(logits[0]), torch.arange(len(x))
        for labels in classes:
            votes[rows, labels] += 1
        return votes


class AntiAdversary(nn.Module):
    """Moves the input, without a graph, two steps towards the class that it has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        label = self.inner(x.detach()).argmax(1)
        with torch.enable_grad():
            moved = torch.zeros_like(x).requires_grad_()
            for _ in range(2):
                loss = functional.cross_entropy(self.inner(x.detach() + moved), label, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, moved)
                moved = (moved - 0.05 * gradient.sign()).detach().requires_grad_()
        logits: Tensor = self.inner(x + moved.detach())
        return logits


class DecisionForest(nn.Module):
    """12 trees of depth 3 on learned features, whose nodes decide; `is_soft` takes sigmoids in place of the decisions."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.is_soft = True
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12 * 7))
        generator = torch.Generator().manual_seed(3)
        self.leaves = nn.Parameter(torch.randn(12, 8, classes, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the mean probabilities of the leaves."""
        nodes = self.trunk(x).view(len(x), 12, 7)
        left = torch.sigmoid(nodes) if self.is_soft else torch.heaviside(nodes.detach(), torch.tensor(0.5))
        reached = x.new_ones(len(x), 12, 1)
        for depth in range(3):
            share = left[..., 2**depth - 1 : 2 ** (depth + 1) - 1]
            reached = torch.stack([reached * share, reached * (1 - share)], -1).flatten(-2)
        probabilities = torch.einsum("ntl,tlk->nk", reached, self.leaves.softmax(-1)) / 12
        return probabilities.clamp(min=1e-6).log()


def _without_low_bits(h: Tensor) -> Tensor:
    """Return activations of one bit of mantissa."""
    return ((h.contiguous().view(torch.int32) >> 22) << 22).view(torch.float32)


def _blended(x: Tensor) -> Tensor:
    """Return images that are blended three times with a median of shifts, without a graph."""
    with torch.no_grad():
        for _ in range(3):
            x = 0.5 * x + 0.5 * torch.stack([x.roll(shift, -1) for shift in (-1, 0, 1)]).median(0).values
    return x


def hooks_and_votes(data: Pair) -> Iterator[Named]:
    """Yield faulty models: name, model, and the network that an attack by hand differentiates (None: the model's own mean gradient)."""
    k = data[0].num_classes
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    yield "noise by a hook on a node", HookedNode(cnn), cnn
    yield "saved tensors spoilt", SpoiltMemory(cnn), cnn
    rounded = Around(cnn, before=torch.vmap(lambda image: (5 * image).round() / 5))
    yield "rounding in vmap", rounded, cnn
    yield "votes added", CountedVotes(cnn), CountedVotes(cnn, is_soft=True)
    yield "votes by bincount", CountedVotes(cnn, has_bins=True), CountedVotes(cnn, is_soft=True)
    yield "anti-adversary layer", AntiAdversary(cnn), cnn
    hard = fitted(DecisionForest(k), data, 25)
    soft = copy.deepcopy(hard)
    hard.is_soft = False
    yield "decision forest", hard, soft
    first, *rest = (layer for layer in mlp.modules() if isinstance(layer, nn.Linear | nn.ReLU))
    bits = Around(nn.Sequential(*rest), before=lambda x: _without_low_bits(first(x.flatten(1))))
    yield "bits of hidden units", bits, mlp
    yield "blended without a graph", Around(cnn, before=_blended), cnn


class _RecurrentRows(nn.Module):
    """A cell of torch's LSTM over the rows of the image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 48), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        state = x.new_zeros(len(x), 48), x.new_zeros(len(x), 48)
        for row in x.squeeze(1).unbind(1):
            state = self.cell(row, state)
        return self.out(state[0])


class _Gates(nn.Module):
    """A convolution whose channels are weighted by their means (squeeze and excitation)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        h = functional.hardswish(self.conv(x))
        return h * functional.hardsigmoid(self.gate(h.mean((2, 3))))[..., None, None]


def hooks_and_votes_honest(data: Pair) -> Iterator[Named]:
    """Yield honest models of kinds that the other galleries lack."""
    k = data[0].num_classes
    yield "LSTM cell", fitted(_RecurrentRows(k), data, 12), None
    yield "squeeze and excitation", fitted(nn.Sequential(_Gates(), nn.Flatten(), nn.Linear(1024, k)), data), None
    grouped = [nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1, groups=4), nn.Softplus()]
    yield (
        "grouped convolutions and softplus",
        fitted(nn.Sequential(*grouped, nn.Flatten(), nn.Linear(512, k)), data),
        None,
    )
