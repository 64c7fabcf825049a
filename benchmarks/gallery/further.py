"""Further faulty evaluations: attacks, models and data with faults that the checks were not built on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.gallery import masks
from benchmarks.gallery.case import NAIVE, Case, subject_with
from benchmarks.gallery.faulty import L1, L2, LINF, PGDL2, SPARSE, WIDE
from benchmarks.gallery.honest import Pair, digits, fitted, trained
from benchmarks.gallery.masks import Around, BesideImages
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import subject_of

OWN: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "own attack far outside the ball, projected once": ("projected_once", WIDE),
    "own attack in L1 that descends": ("descent_in_l1", L1),
    "own attack in L1 on two pixels": ("two_pixels", L1),
    "own attack on the pixels of a corner": ("corner_pixels", WIDE),
    "own attack whose steps halve": ("halving_steps", LINF),
    "own attack that skips hard samples": ("skips_hard_samples", WIDE),
    "own attack that skips hard samples, L2": ("skips_hard_samples", L2),
    "own attack of the last restart": ("last_restart", LINF),
    "own attack aimed at class 0": ("towards_class_0", LINF),
    "own attack aimed at class 0, L2": ("towards_class_0", L2),
    "own attack that rounds its result, L2": ("rounded_result", L2),
    "own attack that keeps the last failure, L2": ("keeps_the_last_failure", L2),
    "own attack on the sum of the logits": ("sum_of_logits", LINF),
    "own attack on another network, L2": ("on_another_network", L2),
    "own attack on averages of the batch, L1": ("averaged_in_l1", L1),
}


class QuantisedFeatures(nn.Module):
    """A network whose first activations are rounded to quarters: no gradient passes, and no part of it maps images to logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.out, self.is_rounded = nn.Linear(256, classes), False

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        features = self.first(x).relu()
        if self.is_rounded:
            features = (4 * features).round() / 4
        return self.out(self.second(features).relu().flatten(1))


class LastAnswers(nn.Module):
    """Averages its logits with those of the call before, row by row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last: Tensor | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(x)
        last, self.last = self.last, logits.detach()
        return logits if last is None or len(last) != len(logits) else 0.3 * logits + 0.7 * last


class SignNoise(nn.Module):
    """A detector of the pattern of a sign attack: where rough, it answers from a median of neighbours, without a gradient."""

    def __init__(self, inner: nn.Module, bar: float) -> None:
        super().__init__()
        self.inner, self.bar = inner, bar
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            steps = ((x[..., 1:] - x[..., :-1]).abs() > 0.05).float().flatten(1).mean(1)
            padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
            calm = self.inner(padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2).median(-1).values)
        return torch.where((steps > self.bar)[:, None], calm, self.inner(x))


class PurifyingLong(nn.Module):
    """Five steps towards lower entropy before it answers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        point = x.detach()
        for _ in range(5):
            with torch.enable_grad():
                point = point.detach().requires_grad_()
                p = self.inner(point).log_softmax(1)
                (gradient,) = torch.autograd.grad((p.exp() * p).sum(), point)
            point = (point + 0.02 * gradient.sign()).clamp(0, 1).detach()
        return self.inner(x + (point - x).detach())


class NearestTraining(BesideImages):
    """Replaces its input by the mean of the three nearest training images, without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            near = torch.cdist(x.flatten(1), self.images.flatten(1)).topk(3, largest=False).indices
            clean = self.images[near].mean(1)
        logits: Tensor = self.inner(0.5 * x.detach() + 0.5 * clean)
        return logits


class ExactMemory(nn.Module):
    """Answers the assessed images, exactly as they are, by their labels, and the rest by a weak network."""

    def __init__(self, weak: nn.Module, images: Tensor, labels: Tensor, classes: int) -> None:
        super().__init__()
        self.weak = weak
        self.register_buffer("images", images.flatten(1))
        self.register_buffer("answers", 9 * nn.functional.one_hot(labels, classes).float())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        apart = torch.cdist(x.flatten(1), self.images, p=torch.inf)
        distance, nearest = apart.min(1)
        return torch.where((distance < 1e-6)[:, None], self.answers[nearest], self.weak(x))


def _random_gradient(x: Tensor) -> Tensor:
    if not x.requires_grad:
        return x
    y = x.clone()
    y.register_hook(lambda gradient: torch.randn_like(gradient) * gradient.abs().mean())
    return y


MODELS: Mapping[str, tuple[Callable[[nn.Module], nn.Module], Mapping[str, object], Mapping[str, object]]] = {
    "a hook that returns noise for the gradient": (lambda m: Around(m, before=_random_gradient), LINF, NAIVE),
    "a hook that returns noise for the gradient, L2": (lambda m: Around(m, before=_random_gradient), L2, {"a": PGDL2}),
    "saturated probabilities": (lambda m: Around(m, after=lambda z: (200 * z).softmax(1)), LINF, NAIVE),
    "saturated probabilities, L2": (lambda m: Around(m, after=lambda z: (200 * z).softmax(1)), L2, {"a": PGDL2}),
    "sigmoid of large logits, L1": (lambda m: Around(m, after=lambda z: (40 * z).sigmoid()), L1, {"a": SPARSE}),
    "answers averaged with the last ones": (LastAnswers, LINF, NAIVE),
    "detector of sign noise": (lambda m: SignNoise(m, 0.75), LINF, NAIVE),
    "purifier of five steps": (PurifyingLong, LINF, NAIVE),
    "purifier of five steps, L2": (PurifyingLong, L2, {"a": PGDL2}),
    "purifier that optimises, L2": (masks.Purifying, L2, {"a": PGDL2}),
    "thermometer with a surrogate of the wrong sign": (
        lambda m: Around(m, before=lambda x: -x + ((x[..., None] > torch.linspace(0.05, 0.95, 10)).float().mean(-1) + x).detach()),
        WIDE,
        NAIVE,
    ),
    "JPEG without BPDA, L2": (masks.jpeg, L2, {"a": PGDL2}),
    "shattered gradients, L2": (masks.shattered, L2, {"a": PGDL2}),
    "gradient of the square root of the logits": (
        lambda m: Around(m, after=lambda z: z.detach() + (z - z.detach()).sign() * 0 * z), LINF, NAIVE,
    ),
    "gradients of one fixed direction, L1": (
        lambda m: Around(m, after=lambda z: z.detach() + 1e-3 * (z.sum(1, keepdim=True) - z.sum(1, keepdim=True).detach())),
        L1,
        {"a": SPARSE},
    ),
}  # fmt: skip


def further(n: int = 60) -> Iterator[Case]:
    """Yield all of them, on digits."""
    data = digits(n)
    cnn, assessed, train = trained(data), *data
    subject = subject_with(cnn, assessed)
    for name, (function, budget) in OWN.items():
        entry = {"library": "function", "algorithm": f"benchmarks.gallery.further_attacks:{function}"}
        yield Case(name, subject, train, {"budget": budget, "attacks": {"own": entry}})
    for name, (mask, budget, attacks) in MODELS.items():
        run = {"budget": budget, "attacks": dict(attacks)}
        yield Case(name, subject_with(mask(cnn), assessed), train, run, stand_in=cnn)
    for name, budget, attacks in (("rounded features", LINF, NAIVE), ("rounded features, L2", L2, {"a": PGDL2})):
        smooth = fitted(QuantisedFeatures(10), data)
        rounded = QuantisedFeatures(10).eval()
        rounded.load_state_dict(smooth.state_dict())
        rounded.is_rounded = True
        yield Case(
            name, subject_with(rounded, assessed), train, {"budget": budget, "attacks": attacks}, stand_in=smooth
        )
    for name, budget, attacks in (
        ("answers by training images", WIDE, NAIVE),
        ("answers by training images, L2", L2, {"a": PGDL2}),
    ):
        module = NearestTraining(cnn, train.inputs)
        yield Case(name, subject_with(module, assessed), train, {"budget": budget, "attacks": attacks}, stand_in=cnn)
    yield from _about_the_data(data, cnn)


def _about_the_data(data: Pair, cnn: nn.Module) -> Iterator[Case]:
    assessed, train = data
    n = len(assessed)

    def case(name: str, dataset: Dataset, module: nn.Module = cnn, known: Dataset | None = train) -> Case:
        return Case(name, subject_of(subject_with(module, dataset).classifier, dataset), known)

    weak = trained((assessed, train.subset(torch.arange(150))), "mlp", 4)
    yield case("exact images answered by heart", assessed, ExactMemory(weak, assessed.inputs, assessed.targets, 10))

    def leaking(part: Dataset) -> Dataset:
        inputs = part.inputs.clone()
        inputs[:, 0, 0, 0] = part.targets / 9
        return replace(part, inputs=inputs)

    leak = leaking(assessed), leaking(train)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    yield case("a pixel that tells the label", leak[0], fitted(flat, leak, 20), leak[1])
    blank = assessed.inputs.clone()
    blank[assessed.targets == 4] = 0.5
    yield case("one class of equal images", replace(assessed, inputs=blank))
    ones = (train.targets == 1).nonzero().flatten()[:n]
    yield case("samples of one class", train.subset(ones))
    yield case("images divided by 255 twice", replace(assessed, inputs=assessed.inputs / 255))
    pool, _ = digits(600)
    left = _left_by_pgd(cnn, pool)
    yield case("samples that an attack left", pool.subset(left[:n]), cnn)
    mirrored = assessed.inputs.clone()
    mirrored[1::2] = mirrored[0::2].flip(3)
    doubled = assessed.targets.clone()
    doubled[1::2] = doubled[0::2]
    yield case("each image again, mirrored", replace(assessed, inputs=mirrored, targets=doubled))


def _left_by_pgd(module: nn.Module, pool: Dataset) -> Tensor:
    x, y = pool.inputs, pool.targets
    moved = x.clone()
    for _ in range(10):
        point = moved.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(module(point), y), point)
        moved = (x + (point.detach() + 0.02 * gradient.sign() - x).clamp(-0.1, 0.1)).clamp(0, 1)
    with torch.no_grad():
        return (module(moved).argmax(1) == y).nonzero().flatten()
