"""A stranger's repository: a network of their own on handwritten digits, its weights, and a folder of PNGs by class."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

NETS = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Linear(width * 49, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))
"""  # noqa: E501


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's digits as 28x28 bytes (N, 1, 28, 28), and their labels."""
    bunch = load_digits()
    small = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    large = nn.functional.interpolate(small, 28, mode="bilinear")
    return (large * 255).round().to(torch.uint8), torch.tensor(bunch.target)


def write_images(folder: Path, samples: int = 80) -> None:
    """The last `samples` digits as folder/<digit>/<number>.png."""
    images, labels = digits()
    for number in range(len(labels) - samples, len(labels)):
        path = folder / str(int(labels[number])) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(images[number, 0])).save(path)


def train(root: Path, epochs: int = 6) -> nn.Module:
    """Write nets.py into `root`, train its network on the digits that are not written as images, and return it."""
    (root / "nets.py").write_text(NETS)
    namespace: dict[str, object] = {}
    exec(compile(NETS, "nets.py", "exec"), namespace)
    torch.manual_seed(0)
    net = namespace["Net"]()
    images, labels = digits()
    x, y = images[:-300].float() / 255, labels[:-300]
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()


def main(root: Path) -> None:
    """All of it: images, network and weights."""
    write_images(root / "data" / "test")
    torch.save(train(root).state_dict(), root / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
