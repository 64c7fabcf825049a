"""The network of the face detector. The assessment never imports it: it sees answers of server.py alone."""

from torch import nn


def network() -> nn.Module:
    """Return a small convolutional network with one output, the logit of "face"."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(400, 1)
    )  # fmt: skip
