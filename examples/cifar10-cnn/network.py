"""A small convolutional network for images of 32x32 pixels."""

from __future__ import annotations

from torch import nn


def small_cnn() -> nn.Sequential:
    """Return a network of 0.4 million parameters from images (n, 3, 32, 32) in [0, 1] to logits (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
