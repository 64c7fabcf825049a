"""Random small networks of all that people put into classifiers, and a search in float64 that shares nothing with the verifiers."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from windtunnel.core.contracts import Norm

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "in place": lambda: nn.ReLU(inplace=True), "leaky": lambda: nn.LeakyReLU(0.2),
    "negative leaky": lambda: nn.LeakyReLU(-0.5), "prelu": lambda: nn.PReLU(1, -0.3), "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh, "hardsigmoid": nn.Hardsigmoid, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU, "softplus": nn.Softplus, "absolute": lambda: Apply(torch.abs),
    "clamped": lambda: Apply(lambda z: z.clamp(-0.5, 1.5)),
    "maximum": lambda: Apply(lambda z: torch.maximum(z, -0.5 * z.flip(1) + 0.2)),
}  # fmt: skip
POOLING: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: nn.MaxPool2d(2), "overlapping max": lambda: nn.MaxPool2d(3, 2, 1),
    "max ceil": lambda: nn.MaxPool2d(2, ceil_mode=True), "average": lambda: nn.AvgPool2d(2),
    "overlapping average": lambda: nn.AvgPool2d(3, 2, 1), "average without padding": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(2), "adaptive max": lambda: nn.AdaptiveMaxPool2d(1),
}  # fmt: skip
SHAPES = ((1, 4, 4), (1, 6, 6), (2, 5, 5), (3, 4, 4))
ORDER = {Norm.LINF: torch.inf, Norm.L2: 2, Norm.L1: 1}


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Beside(nn.Module):
    """x + inner(x), or both side by side."""

    def __init__(self, inner: nn.Module, *, joined: bool) -> None:
        super().__init__()
        self.inner, self.joined = inner, joined

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.inner(x)], 1) if self.joined else x + self.inner(x)


class Normalised(nn.Module):
    """(x - mean) / std."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(channels, 1, 1))
        self.register_buffer("std", torch.rand(channels, 1, 1) + 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def random_network(seed: int) -> tuple[nn.Module, tuple[int, int, int], int]:
    """(module in evaluation, the shape of its inputs, its classes)."""
    torch.manual_seed(seed)
    pick = random.Random(seed)
    shape, classes = pick.choice(SHAPES), pick.choice([2, 3, 5])
    favourite = pick.choice(list(ACTIVATIONS))  # half of the networks have one kind alone
    mixed = pick.random() < 0.5

    def activation() -> nn.Module:
        return ACTIVATIONS[pick.choice(list(ACTIVATIONS)) if mixed else favourite]()

    parts: list[nn.Module] = [Normalised(shape[0])] if pick.random() < 0.4 else []
    channels = shape[0]
    for _ in range(pick.choice([0, 1, 1, 2])):
        parts += _convolution(channels, channels := pick.choice([2, 4]), pick, activation)
    if pick.random() < 0.5:
        parts.append(POOLING[pick.choice(list(POOLING))]())
    parts.append(nn.Flatten())
    size = nn.Sequential(*parts).eval()(torch.zeros(1, *shape)).shape[1]
    for _ in range(pick.choice([0, 1, 1, 2, 3])):
        parts += [nn.Linear(size, size := pick.choice([4, 6, 8]))]
        parts += [_statistics(nn.BatchNorm1d(size))] if pick.random() < 0.2 else []
        parts += [activation()]
        if pick.random() < 0.3:
            joined = pick.random() < 0.5
            parts.append(Beside(nn.Sequential(nn.Linear(size, size), activation()), joined=joined))
            size *= 1 + joined
        parts += [nn.Dropout(0.5)] if pick.random() < 0.2 else []
    parts.append(nn.Linear(size, classes))
    module = nn.Sequential(*parts).eval().requires_grad_(False)
    gain, scale = pick.choice([1.0, 2.0, 3.0]), 10 ** pick.uniform(-2, 2)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            part.weight.mul_(gain)
    parts[-1].weight.mul_(scale), parts[-1].bias.mul_(scale)
    return module, shape, classes


def _convolution(before: int, after: int, pick: random.Random, activation: Callable[[], nn.Module]) -> list[nn.Module]:
    kernel, groups = pick.choice([1, 2, 3]), pick.choice([1, 1, before if after % before == 0 else 1])
    parts: list[nn.Module] = [nn.Conv2d(before, after, kernel, pick.choice([1, 1, 2]), kernel // 2, groups=groups)]
    parts += [_statistics(nn.BatchNorm2d(after))] if pick.random() < 0.4 else []
    parts += [activation()]
    if pick.random() < 0.4:
        inner = [nn.Conv2d(after, after, 3, 1, 1), _statistics(nn.BatchNorm2d(after)), activation()]
        parts += [Beside(nn.Sequential(*inner), joined=False), activation()]
    return parts


def _statistics(layer: nn.Module) -> nn.Module:
    for tensor in (layer.running_mean, layer.weight.data, layer.bias.data):
        tensor.normal_()
    layer.running_var.uniform_(0.2, 2)
    return layer


def random_inputs(n: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(n, *shape): every second one lies mostly at the ends of [0, 1], where a ball is cut off."""
    x = torch.rand(n, *shape, generator=generator)
    x[::2] = (1.6 * x[::2] - 0.3).clamp(0, 1)
    return x


def least_margins(
    module: nn.Module, x: Tensor, target: int, norm: Norm, epsilon: float, generator: torch.Generator
) -> Tensor:
    """(K,) the least margin over each class that is met in the ball around x (*shape), cut off at [0, 1]; inf at `target`.

    module: in float64. Corners, random points and 40 steps of descent aimed at each class, from all of them.
    """
    d, k, starts = x.numel(), module(x[None].double()).shape[1], 40
    flat = x.double().flatten()
    low, high = (flat - epsilon).clamp(0, 1), (flat + epsilon).clamp(0, 1)

    def inside(points: Tensor) -> Tensor:
        points = points.maximum(low).minimum(high)
        length = torch.linalg.vector_norm(points - flat, ord=ORDER[norm], dim=1, keepdim=True).clamp(min=1e-12)
        return flat + (points - flat) * (epsilon / length).clamp(max=1)

    noise = torch.randn(k * starts, d, generator=generator, dtype=torch.float64)
    if norm is Norm.LINF:
        noise = torch.where(torch.rand(len(noise), 1, generator=generator) < 0.5, noise.sign(), noise)
    if norm is Norm.L1:
        noise = noise * (noise.abs() >= noise.abs().topk(2, 1).values[:, -1:])
    points = inside(flat + epsilon * noise)
    aimed = torch.arange(k).repeat_interleave(starts)
    least = torch.full((k,), torch.inf, dtype=torch.float64)
    for step in range(41):
        points.requires_grad_()
        logits = module(points.view(-1, *x.shape))
        margins = logits[:, [target]] - logits
        (gradient,) = torch.autograd.grad(margins.gather(1, aimed[:, None]).sum(), points)
        least = torch.minimum(least, margins.detach().amin(0))
        points, size = points.detach(), 0.5 * epsilon * 0.9**step
        if norm is Norm.LINF:
            moved = gradient.sign()
        elif norm is Norm.L2:
            moved = gradient / torch.linalg.vector_norm(gradient, dim=1, keepdim=True).clamp(min=1e-30)
        else:  # towards the best corner that is inside the image
            room = torch.where(gradient > 0, flat - low, high - flat)
            best = (gradient.abs() * room).argmax(1, keepdim=True)
            corner = -gradient.sign().gather(1, best) * room.gather(1, best)
            points = inside(
                points + (torch.zeros_like(points).scatter(1, best, corner) + flat - points) * 2 / (step + 2)
            )
            continue
        points = inside(points - size * moved)
    least[target] = torch.inf
    return least
