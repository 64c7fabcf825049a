"""MLPerf Tiny's ResNet-8 in torch, batch normalisation folded: the differentiable twin of both TFLite files."""

from __future__ import annotations

import torch
from torch import nn

# (input channels, output channels, kernel size, stride) of conv2d, conv2d_1, ... in TFLite's order.
CONVOLUTIONS = (
    (3, 16, 3, 1), (16, 16, 3, 1), (16, 16, 3, 1), (16, 32, 3, 2), (32, 32, 3, 1), (16, 32, 1, 2), (32, 64, 3, 2), (64, 64, 3, 1),
    (32, 64, 1, 2),
)  # fmt: skip


class Convolution(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME is: with a stride of 2 the odd row and column go to the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution of x (n, channels, height, width)."""
        total = max(self.kernel_size[0] - self.stride[0], 0)
        before = total // 2
        return super().forward(nn.functional.pad(x, (before, total - before, before, total - before)))


class ResNet8(nn.Module):
    """Three residual blocks on inputs in 0..255."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(Convolution(i, o, k, s) for i, o, k, s in CONVOLUTIONS)
        self.dense = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, 10) of x (n, 3, 32, 32)."""
        first, *others = self.convolutions
        x = first(x).relu()
        x = (x + others[1](others[0](x).relu())).relu()
        for a, b, shortcut in (others[2:5], others[5:8]):
            x = (shortcut(x) + b(a(x).relu())).relu()
        return self.dense(x.mean((2, 3)))
