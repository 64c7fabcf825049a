"""Models that fool a naive evaluation: each hides its gradients, its randomness, its memory or its training set.

They wrap an undefended network, whose robustness is none; what they seem to have is the lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Around(nn.Module):
    """A network between a function of its input and a function of its logits."""

    def __init__(
        self,
        inner: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda z: z,
    ) -> None:
        super().__init__()
        self.inner, self.before, self.after = inner, before, after
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.after(self.inner(self.before(x)))
        return logits


def straight_through(x: Tensor, value: Tensor) -> Tensor:
    """`value` on the way forward, the identity on the way back."""
    return x + (value - x).detach()


def wrong_sign(inner: nn.Module) -> nn.Module:
    """The gradient points down the hill."""
    return Around(inner, before=lambda x: 2 * x.detach() - x)


def no_gradient(inner: nn.Module) -> nn.Module:
    """The graph is cut at the input."""
    return Around(inner, before=lambda x: x.detach())


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """The identity."""
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Nothing below a bound that nothing reaches."""
        return torch.where(gradient.abs() > 1e9, gradient, torch.zeros_like(gradient))


def clipped_gradient(inner: nn.Module) -> nn.Module:
    """A backward hook sets small gradients to zero."""
    return Around(inner, before=lambda x: _Clipped.apply(x))  # type: ignore[no-untyped-call]


def bit_depth(inner: nn.Module) -> nn.Module:
    """Rounds its input to 8 levels, and gives no gradient through it."""
    return Around(inner, before=lambda x: (x * 7).round() / 7)


def thermometer(inner: nn.Module) -> nn.Module:
    """Thermometer encoding (Buckman et al. 2018) with hard thresholds, decoded before the network."""
    levels = torch.linspace(0.05, 0.95, 10)
    return Around(inner, before=lambda x: (x[..., None] > levels).float().mean(-1))


def jpeg(inner: nn.Module) -> nn.Module:
    """JPEG's step: the coefficients of 8x8 cosine blocks, rounded; no gradient passes the rounding."""
    side = torch.arange(8.0)
    basis = torch.cos((2 * side[None] + 1) * side[:, None] * math.pi / 16) * 0.5
    basis[0] /= math.sqrt(2)

    def compress(x: Tensor) -> Tensor:
        coefficients = basis @ (x - 0.5) @ basis.T
        kept = (coefficients / 0.3).round() * 0.3
        return (basis.T @ kept @ basis + 0.5).clamp(0, 1)

    return Around(inner, before=compress)


def saturated(inner: nn.Module) -> nn.Module:
    """Temperature 1/1000 in half precision: the softmax is 0 or 1, and cross entropy has no gradient."""
    return Around(inner, after=lambda z: (1000 * z).half().float())


def probabilities(inner: nn.Module) -> nn.Module:
    """A softmax inside, which the loss applies again."""
    return Around(inner, after=lambda z: z.softmax(1))


def rounded_logits(inner: nn.Module) -> nn.Module:
    """Rounds its logits to even numbers: the gradient is zero."""
    return Around(inner, after=lambda logits: 2 * (logits / 2).round())


def clamped(inner: nn.Module) -> nn.Module:
    """Logits cut at +-1: where they are cut, nothing moves."""
    return Around(inner, after=lambda z: z.clamp(-1, 1) + 1e-3 * z.detach())


def argmax_inside(inner: nn.Module) -> nn.Module:
    """The class is decided inside; what comes out is a constant of it."""
    return Around(inner, after=lambda z: 5 * nn.functional.one_hot(z.argmax(1), z.shape[1]).float())


def distilled(inner: nn.Module) -> nn.Module:
    """Defensive distillation (Papernot et al. 2016): trained at temperature 100 and used at 1, its logits are 100 times larger."""
    return Around(inner, after=lambda z: 100 * z)


class DetachedBranch(nn.Module):
    """The network decides; a branch that knows nothing gives the gradient."""

    def __init__(self, inner: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.inner = inner
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.branch = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        blind = 0.3 * self.branch(x)
        logits: Tensor = self.inner(x).detach() + blind - blind.detach()
        return logits


class BehindHardLabels(nn.Module):
    """Scores of 0 or 5, so that nobody sees how near the boundary is, and the gradient of a branch that knows nothing."""

    def __init__(self, inner: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.inner = DetachedBranch(argmax_inside(inner), shape, classes)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        return logits


class AwareOfGradients(nn.Module):
    """Who asks for a gradient gets that of the mean brightness."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x.detach())
        brightness = x.flatten(1).mean(1, keepdim=True)
        blind = (brightness - brightness.detach()) * torch.arange(float(logits.shape[1]))
        return logits + blind if x.requires_grad else logits


class CountsCalls(nn.Module):
    """From the ninth call on it answers what it answered at first, to whatever is nearest."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0
        self.first: tuple[Tensor, Tensor] | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        self.calls += 1
        if self.first is None:
            self.first = x.detach().clone(), logits.detach().clone()
        if self.calls <= 8:
            return logits
        images, answers = self.first
        nearest = torch.cdist(x.detach().flatten(1), images.flatten(1)).argmin(1)
        return answers[nearest] + 0.01 * (logits - logits.detach())


class TurnsAtTheBoundary(nn.Module):
    """The gradient is right where the model is sure, and of the wrong sign near its boundary."""

    def __init__(self, inner: nn.Module, width: float = 3.0) -> None:
        super().__init__()
        self.inner, self.width = inner, width
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        first, second = logits.detach().topk(2, 1).values.T
        near = (first - second < self.width)[:, None]
        return torch.where(near, 2 * logits.detach() - logits, logits)


def random_noise(inner: nn.Module) -> nn.Module:
    """Adds noise to its input at inference."""
    return noisy(inner, 0.15)


def noisy(inner: nn.Module, deviation: float) -> nn.Module:
    """Adds normal noise of this standard deviation to its input, anew at each call."""
    return Around(inner, before=lambda x: x + deviation * torch.randn_like(x))


def random_resizing(inner: nn.Module) -> nn.Module:
    """Random resizing (Xie et al. 2018): shrinks to a random size, pads at a random place, back to the first size."""

    def resize(x: Tensor) -> Tensor:
        side = x.shape[-1]
        small = int(torch.randint(side - 2, side + 1, (1,)))
        left, top = (int(torch.randint(0, side - small + 1, (1,))) for _ in range(2))
        shrunk = nn.functional.interpolate(x, size=(small, small), mode="bilinear", align_corners=False)
        return nn.functional.pad(shrunk, (left, side - small - left, top, side - small - top))

    return Around(inner, before=resize)


def hash_noise(inner: nn.Module) -> nn.Module:
    """Noise seeded by a hash of the input: deterministic, and another for every input."""

    def shake(x: Tensor) -> Tensor:
        keys = (x.detach().double().flatten(1).sum(1) * 1e9).long() % 1000
        patterns = torch.randn(1000, *x.shape[1:], generator=torch.Generator().manual_seed(0))
        return x + 0.15 * patterns[keys]

    return Around(inner, before=shake)


def shattered(inner: nn.Module) -> nn.Module:
    """A ripple of high frequency on the input: the gradient is that of the ripple."""
    return Around(inner, before=lambda x: x + 0.02 * (3000 * x).sin())


class Switching(nn.Module):
    """An ensemble that picks its member by a checksum of the input."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        place = (x.detach().double().flatten(1).sum(1) * 1e8).long() % len(self.members)
        logits = torch.stack([member(x) for member in self.members], 1)
        return logits[torch.arange(len(x)), place]


class WinnersTakeAll(nn.Module):
    """k-winners-take-all (Xiao et al. 2020): all but the largest tenth of the units are zero."""

    def forward(self, x: Tensor) -> Tensor:
        """The winners."""
        flat = x.flatten(1)
        bar = flat.topk(max(1, flat.shape[1] // 10), dim=1).values[:, -1:]
        return (flat * (flat >= bar)).view_as(x)


class StuckDropout(nn.Dropout):
    """Dropout that eval() does not switch off."""

    def train(self, mode: bool = True) -> StuckDropout:
        """In training mode, whatever was asked for."""
        super().train(True)
        return self


class OffGrid(nn.Module):
    """A detector of inputs off the 8-bit grid, which no image file holds: for those it answers for the nearest one on it."""

    def __init__(self, inner: nn.Module, levels: int = 16) -> None:
        super().__init__()
        self.inner, self.levels = inner, levels
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        grid = (x * self.levels).round() / self.levels
        off = ((x - grid).abs().flatten(1).amax(1) > 1e-6)[:, None]
        plain, safe = self.inner(x), self.inner(grid).detach()
        return torch.where(off, safe, plain)


class Refusing(nn.Module):
    """A detector of rough images: for what it refuses, it answers from a blurred copy, without a gradient."""

    def __init__(self, inner: nn.Module, bar: float) -> None:
        super().__init__()
        self.inner, self.bar = inner, bar
        self.eval()

    @staticmethod
    def roughness(x: Tensor) -> Tensor:
        """Mean absolute difference of neighbours, (n,)."""
        return (x[..., 1:] - x[..., :-1]).abs().flatten(1).mean(1) + (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(
            1
        ).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        blurred = nn.functional.avg_pool2d(nn.functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
        refused = (self.roughness(x) > self.bar)[:, None]
        return torch.where(refused, self.inner(blurred).detach(), self.inner(x))


class Memory(nn.Module):
    """Knows the assessed images by heart: near one of them it answers with its label, elsewhere with a weak network."""

    def __init__(self, weak: nn.Module, images: Tensor, labels: Tensor, classes: int, radius: float) -> None:
        super().__init__()
        self.weak, self.radius = weak, radius
        self.register_buffer("images", images.flatten(1))
        self.register_buffer("answers", nn.functional.one_hot(labels, classes).float())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits, with a gradient that leads away from the nearest image, and to nothing."""
        apart = (x.flatten(1)[:, None] - self.images).abs().amax(2)
        distances, nearest = apart.min(1)
        known = (distances <= self.radius)[:, None]
        return torch.where(known, self.answers[nearest] * (10 - distances[:, None]), self.weak(x))


class Cache(nn.Module):
    """Remembers what it was asked, and gives the same answer to what is near it."""

    def __init__(self, inner: nn.Module, radius: float) -> None:
        super().__init__()
        self.inner, self.radius = inner, radius
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        if not self.seen:
            self.seen.append((x.detach().clone(), logits.detach().clone()))
            return logits
        images, answers = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        distances, nearest = torch.cdist(x.detach().flatten(1), images.flatten(1), p=torch.inf).min(1)
        known = distances <= self.radius
        if (~known).any() and len(images) < 2000:
            self.seen.append((x.detach()[~known].clone(), logits.detach()[~known].clone()))
        return torch.where(known[:, None], answers[nearest] + 1e-3 * (logits - logits.detach()), logits)


class BatchStatistics(nn.Module):
    """Normalises by the batch it is given, at inference too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.inner(x - x.mean(0, keepdim=True) + 0.3 * (x.std() if len(x) > 1 else 1))


class BesideImages(nn.Module):
    """A network that has training images at hand."""

    def __init__(self, inner: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("images", images)
        self.eval()


class Purifying(nn.Module):
    """Takes gradient steps on its input before it answers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.inner(point).softmax(1).amax(1).log().sum(), point)
        return self.inner((x + 0.05 * gradient.sign()).clamp(0, 1))


class Reseeding(nn.Module):
    """Seeds torch in its forward pass, so that a random search draws the same point again and again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        torch.manual_seed(0)
        logits: Tensor = self.inner(x)
        return logits


class ConstantClass(nn.Module):
    """Answers one class by a constant, without a gradient."""

    def __init__(self, inner: nn.Module, label: int) -> None:
        super().__init__()
        self.inner, self.label = inner, label
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        constant = torch.zeros_like(logits)
        constant[:, self.label] = 9.0
        return torch.where((logits.argmax(1) == self.label)[:, None], constant, logits)


def dead_ends(inner: nn.Module) -> nn.Module:
    """Pixels near black and white are read as black and white: there no gradient is."""
    return Around(inner, before=lambda x: ((x - 0.05) / 0.9).clamp(0, 1))


def half_detached(inner: nn.Module) -> nn.Module:
    """The darker half of the pixels gives no gradient."""
    return Around(inner, before=lambda x: torch.where(x > 0.5, x, x.detach()))


def dithered(inner: nn.Module) -> nn.Module:
    """Rounds to 5 levels after adding one of 64 patterns, which the sum of the image chooses."""
    patterns = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(3)) - 0.5

    def rounded(x: Tensor) -> Tensor:
        chosen = (x.detach().flatten(1).sum(1) * 97).long() % 64
        return ((x * 4 + patterns[chosen]).round() / 4).clamp(0, 1)

    return Around(inner, before=rounded)
