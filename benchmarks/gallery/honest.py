"""Honest models: what no check may call a lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.dataset import Dataset
from windtunnel.params.data import Data
from windtunnel.params.model import Recipe

CPU = torch.device("cpu")
Pair = tuple[Dataset, Dataset]


def digits(n: int = 60) -> Pair:
    """(n assessed samples, training split) of scikit-learn's digits."""
    assessed, train = load_dataset(Data(samples={"n": n, "selection": "stratified"}), 0)
    assert train is not None
    return assessed, train


def mapped(data: Pair, change: Callable[[Tensor], Tensor]) -> Pair:
    """The same samples with other inputs."""
    first, second = (replace(part, inputs=change(part.inputs)) for part in data)
    return first, second


def larger(data: Pair) -> Pair:
    """Digits at 16x16."""
    return mapped(data, lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))


def coloured(data: Pair) -> Pair:
    """Digits in three channels of other brightness."""
    tint = torch.tensor([1.0, 0.8, 0.6]).view(1, 3, 1, 1)
    return mapped(data, lambda x: x * tint)


def shapes(n: int = 60) -> Pair:
    """Four drawn shapes at 12x12 under noise, in 8 bits: other data than digits, and easier."""
    generator = torch.Generator().manual_seed(7)
    total = n + 800
    targets = torch.arange(total) % 4
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    centre = 4.5 + 2 * torch.rand(total, 2, generator=generator)
    dy, dx = rows - centre[:, :1, None], columns - centre[:, 1:, None]
    distances = torch.maximum(dy.abs(), dx.abs())
    drawn = torch.stack(
        [
            (distances < 3.5) & (distances > 1.5),
            (dy**2 + dx**2) < 12,
            (dy.abs() < 1.2) & (dx.abs() < 4.5),
            (dy - dx).abs() < 1.7,
        ]
    )
    images = drawn[targets, torch.arange(total)].float() * 0.8 + 0.1
    images = (images + 0.05 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
    inputs = (images * 255).round().div(255)[:, None]
    names = ("frame", "disc", "bar", "diagonal")
    assessed, train = (
        Dataset(
            inputs[part],
            targets[part],
            tuple(f"shape-{i}" for i in range(total)[part]),
            names,
            metadata={"source": "shapes", "channels": 1, "samples": {"of": total, "n": len(targets[part])}},
        )
        for part in (slice(0, n), slice(n, None))
    )
    return assessed, train


def trained(data: Pair, architecture: str = "cnn", epochs: int = 8, **recipe: object) -> nn.Module:
    """A network of the package's own recipes."""
    return train_classifier(Recipe(architecture=architecture, epochs=epochs, **recipe), data[1], 0, CPU)  # type: ignore[arg-type]


def fitted(module: nn.Module, data: Pair, epochs: int = 10, loss: Callable[..., Tensor] | None = None) -> nn.Module:
    """A network of any shape, trained plainly or under a loss of (module, x, y, share of training done)."""
    torch.manual_seed(0)
    for layer in module.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-3)
    x, y = data[1].inputs, data[1].targets
    module.train()
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            value = (
                nn.functional.cross_entropy(module(x[rows]), y[rows])
                if loss is None
                else loss(module, x[rows], y[rows], epoch / epochs)
            )
            value.backward()
            optimiser.step()
    return module.eval()


def provable(data: Pair, epsilon: float = 0.1) -> nn.Module:
    """A network trained on interval bounds (Gowal et al. 2018, arXiv 1810.12715), so that much of it can be certified."""
    d, k = data[0].inputs[0].numel(), data[0].num_classes
    module = nn.Sequential(nn.Flatten(), nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, k))

    def loss(net: nn.Module, x: Tensor, y: Tensor, done: float) -> Tensor:
        low, high = (x - epsilon * done).clamp(0, 1).flatten(1), (x + epsilon * done).clamp(0, 1).flatten(1)
        for layer in list(net)[1:]:  # type: ignore[call-overload]
            if isinstance(layer, nn.Linear):
                middle, radius = (low + high) / 2, (high - low) / 2
                middle, radius = layer(middle), radius @ layer.weight.abs().T
                low, high = middle - radius, middle + radius
            else:
                low, high = layer(low), layer(high)
        worst = torch.where(nn.functional.one_hot(y, k).bool(), low, high)
        plain, robust = nn.functional.cross_entropy(net(x), y), nn.functional.cross_entropy(worst, y)
        return (1 - done / 2) * plain + done / 2 * robust

    return fitted(module, data, 30, loss)


def quantised(module: nn.Module) -> nn.Module:
    """Every weight rounded to 8 bits, layer by layer."""
    with torch.no_grad():
        for parameter in module.parameters():
            scale = parameter.abs().max().clamp(min=1e-12) / 127
            parameter.copy_((parameter / scale).round() * scale)
    return module


class Smoothed(nn.Module):
    """Mean logits over 16 fixed draws of noise: a smoothed classifier without randomness of its own."""

    def __init__(self, inner: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("noise", 0.2 * torch.randn(16, *shape, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner((x[:, None] + self.noise).flatten(0, 1))
        return logits.view(len(x), 16, -1).mean(1)


class Averaged(nn.Module):
    """The mean logits of two networks."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return torch.stack([m(x) for m in self.members]).mean(0)


def _normalised(data: Pair) -> nn.Module:
    channels = data[0].inputs.shape[1]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16),
        nn.ReLU(), nn.Flatten(), nn.LazyLinear(data[0].num_classes),
    )  # fmt: skip


def _dropout(data: Pair) -> nn.Module:
    d = data[0].inputs[0].numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(d, 96), nn.ReLU(), nn.Dropout(0.4), nn.Linear(96, data[0].num_classes))


def _initialised(module: nn.Module, data: Pair) -> nn.Module:
    module(data[0].inputs[:2])
    return module


def models(n: int = 60) -> dict[str, tuple[nn.Module, Pair]]:
    """Every honest model with its data."""
    plain, wide, colour, drawn = digits(n), larger(digits(n)), coloured(digits(n)), shapes(n)
    return {
        "undefended mlp": (trained(plain, "mlp", 15), plain),
        "undefended cnn": (trained(plain), plain),
        "adversarial cnn": (trained(plain, recipe="adversarial", epochs=6), plain),
        "provable (IBP)": (provable(plain), plain),
        "noise trained": (trained(plain, recipe="noise"), plain),
        "smoothed": (Smoothed(trained(plain, recipe="noise"), tuple(plain[0].inputs.shape[1:])), plain),
        "8-bit weights": (quantised(trained(plain)), plain),
        "batch norm": (fitted(_initialised(_normalised(plain), plain), plain), plain),
        "dropout, off": (fitted(_dropout(plain), plain), plain),
        "ensemble": (Averaged(trained(plain, "mlp", 15), trained(plain)), plain),
        "cnn at 16x16": (trained(wide), wide),
        "cnn in colour": (trained(colour), colour),
        "cnn on shapes": (trained(drawn, epochs=4), drawn),
        "adversarial on shapes": (trained(drawn, recipe="adversarial", epochs=4), drawn),
    }
