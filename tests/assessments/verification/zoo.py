"""Twenty-odd architectures that people have, each with the shape of its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

GREY, COLOUR = (1, 12, 12), (3, 16, 16)


class Residual(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels * stride, 3, stride, 1, bias=False), nn.BatchNorm2d(channels * stride), nn.ReLU(),
            nn.Conv2d(channels * stride, channels * stride, 3, 1, 1, bias=False), nn.BatchNorm2d(channels * stride),
        )  # fmt: skip
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(channels, channels * stride, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Dense(nn.Module):
    """BatchNorm, ReLU, convolution, and everything before it concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4, 3, padding=1)) for c in (4, 8)
        )
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.cat([x, block(x)], 1)
        return self.head(x.relu().mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, 4)
        self.place = nn.Parameter(0.1 * torch.randn(1, 10, 16))
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


class PatchAttention(nn.Module):
    """A transformer's block written out by hand, with layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, 8, 4, 4), nn.LayerNorm(8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(72, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attention = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1)
        return self.head((x + attention @ v).flatten(1))  # type: ignore[no-any-return]


class ByBranch(nn.Module):
    """What no tracer follows: auto-LiRPA takes the branch of its example for the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) if float(x.sum()) > -1 else self.network(-x)  # type: ignore[no-any-return]


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 24), activation, nn.Linear(24, 16), activation, nn.Linear(16, 5))


def conv(*middle: nn.Module, flat: int, first: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(first, 4, 3, padding=1), nn.ReLU(), *middle, nn.Flatten(), nn.Linear(flat, 5))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5),
    )  # fmt: skip


def large(width: int) -> nn.Module:
    """A convolutional network of 2 (width 24) or 10 million parameters (width 120)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 20 * width), nn.ReLU(),
        nn.Linear(20 * width, 5),
    )  # fmt: skip


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "mlp": (lambda: mlp(nn.ReLU()), GREY),
    "lenet": (lenet, GREY),
    "max pooling": (lambda: conv(nn.MaxPool2d(2), flat=144), GREY),
    "overlapping max pooling": (lambda: conv(nn.MaxPool2d(3, 2), flat=100), GREY),
    "average pooling": (lambda: conv(nn.AvgPool2d(2), flat=144), GREY),
    "padded average pooling": (lambda: conv(nn.AvgPool2d(3, 2, 1), flat=144), GREY),
    "adaptive pooling": (lambda: conv(nn.AdaptiveAvgPool2d(1), flat=4), GREY),
    "adaptive max pooling": (lambda: conv(nn.AdaptiveMaxPool2d(2), flat=16), GREY),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5)), GREY),
    "resnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Residual(4), Residual(4, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        ),
        COLOUR,
    ),
    "densenet": (Dense, GREY),
    "transformer": (Transformer, GREY),
    "attention by hand": (PatchAttention, GREY),
    "gelu": (lambda: mlp(nn.GELU()), GREY),
    "silu": (lambda: mlp(nn.SiLU()), GREY),
    "softplus": (lambda: mlp(nn.Softplus()), GREY),
    "layer norm": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 5)), GREY),
    "sigmoid": (lambda: mlp(nn.Sigmoid()), GREY),
    "tanh": (lambda: mlp(nn.Tanh()), GREY),
    "leaky": (lambda: mlp(nn.LeakyReLU(0.1)), GREY),
    "elu": (lambda: mlp(nn.ELU()), GREY),
    "softmax end": (lambda: nn.Sequential(mlp(nn.ReLU()), nn.Softmax(1)), GREY),
    "dropout": (lambda: conv(nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.Dropout(0.5), flat=144), GREY),
    "dropout and batch norm": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5)
        ),
        GREY,
    ),
    "grouped": (lambda: conv(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), flat=800), GREY),
    "depthwise": (lambda: conv(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1), nn.ReLU6(), flat=800), GREY),
    "dilated": (lambda: conv(nn.Conv2d(4, 4, 3, dilation=2), nn.ReLU(), flat=256), GREY),
    "group norm": (lambda: conv(nn.GroupNorm(2, 4), nn.ReLU(), flat=576), GREY),
    "branching": (ByBranch, GREY),
    "2 million": (lambda: large(24), COLOUR),
    "10 million": (lambda: large(120), COLOUR),
}  # fmt: skip
