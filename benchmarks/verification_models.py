"""The networks of `benchmarks/verification.py`: trained once with a fixed seed, kept in a folder, on MNIST."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.boundary.models.architectures import cnn, lenet5
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of


class ResidualCNN(nn.Module):
    """Two residual blocks with batch normalisation between a strided stem and average pooling; pixels are normalised."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(2)
        )
        self.head = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(width * 49, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x` (N, 1, 28, 28)."""
        x = self.stem((x - 0.1307) / 0.3081)
        for block in self.blocks:
            x = (x + block(x)).relu()
        logits: Tensor = self.head(x)
        return logits


def dense(layers: int) -> nn.Sequential:
    """An MLP of `layers` hidden layers of 256 units."""
    sizes = [784, *[256] * layers]
    hidden = [part for a, b in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))


def untrained(name: str, make: Callable[[], nn.Module], samples: int) -> Subject:
    """A network whose own predictions on noise of MNIST's shape are the targets; what it costs does not depend on its weights."""
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)
    classifier = Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), name)
    inputs = torch.rand(samples, 1, 28, 28)
    ids = tuple(map(str, range(samples)))
    return subject_of(classifier, Dataset(inputs, classifier.predict(inputs), ids, tuple("0123456789")))


# name: (factory, epsilon of adversarial training or 0, epochs)
TRAINED = {
    "mlp4": (lambda: dense(4), 0.0, 6),
    "mlp2": (lambda: dense(2), 0.0, 6),
    "mlp6": (lambda: dense(6), 0.0, 6),
    "cnn_adversarial": (lambda: cnn((1, 28, 28), 10), 0.3, 8),
    "residual": (ResidualCNN, 0.0, 4),
}
REFERENCE = {"lenet5_standard": "mnist_lenet5_clntrained.pt", "lenet5_adversarial": "mnist_lenet5_advtrained.pt"}


def network(name: str, folder: Path, references: Path, inputs: Tensor, targets: Tensor) -> nn.Module:
    """The network `name`: reference weights, or trained on (inputs, targets) unless `folder` holds its weights."""
    if name in REFERENCE:
        module, path = lenet5(), references / REFERENCE[name]
    else:
        factory, epsilon, epochs = TRAINED[name]
        torch.manual_seed(0)
        module, path = factory(), folder / f"{name}.pt"
        if not path.is_file():
            _train(module, inputs, targets, epsilon, epochs)
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(module.state_dict(), path)
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return module.eval().requires_grad_(False)


def _train(module: nn.Module, inputs: Tensor, targets: Tensor, epsilon: float, epochs: int) -> None:
    """Adam on cross-entropy; with `epsilon` on PGD examples (Madry et al. 2018), whose radius grows for half the time."""
    steps, done = epochs * -(-len(inputs) // 128), 0
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(128):
            x, y = inputs[rows], targets[rows]
            if epsilon:
                x = _worst(module, x, y, epsilon * min(1.0, 2 * done / steps))
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()
            schedule.step()
            done += 1


def _worst(module: nn.Module, x: Tensor, y: Tensor, epsilon: float, steps: int = 7) -> Tensor:
    low, high = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    moved = low + (high - low) * torch.rand_like(x)
    for _ in range(steps):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(module(moved), y), moved)
        moved = torch.min(torch.max(moved.detach() + 2.5 * epsilon / steps * gradient.sign(), low), high)
    return moved
