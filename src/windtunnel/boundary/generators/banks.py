"""The built-in generative models: networks for all classes at once, one per class, run side by side as one batched product.

A bank of K networks takes (k, B, ...): B rows for each of the k classes asked for. K separate modules would cost K times
the calls, and a search takes thousands of calls.
"""

from collections.abc import Sequence
from math import ceil, log2, prod, sqrt

import torch
from torch import Tensor, nn

HIDDEN = 128  # units of a hidden layer where images are too small for strided convolutions
SMALLEST_MAP = 8  # feature maps are halved until they are at most this large


class Bank(nn.Module):
    """Layers of K networks. forward(x (k, B, ...), which): row block i of x goes through network `which[i]`; None for all K."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """Return the outputs, (k, B, ...)."""
        for layer in self.layers:
            x = layer(x, which) if isinstance(layer, BankLayer) else layer(x)
        return x


class BankLayer(nn.Module):
    """A layer with weights of its own for each class: weight (K, ...), bias (K, out)."""

    def __init__(self, weight: Tensor, out: int, fan_in: int) -> None:
        super().__init__()
        bound = fan_in**-0.5  # torch's own initialisation of linear and convolution layers
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(len(weight), out).uniform_(-bound, bound))

    def chosen(self, which: Tensor | None) -> tuple[Tensor, Tensor]:
        """(weight, bias) of the networks asked for."""
        return (self.weight, self.bias) if which is None else (self.weight[which], self.bias[which])


class BankLinear(BankLayer):
    """x (k, B, in) -> (k, B, out)."""

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__(torch.empty(k, n_in, n_out), n_out, n_in)

    def forward(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """One batched product."""
        weight, bias = self.chosen(which)
        return torch.baddbmm(bias[:, None], x.flatten(2), weight)


class BankConv(BankLayer):
    """x (k, B, c, h, w) -> (k, B, c', h / 2, w / 2): a 4x4 convolution of stride 2, grouped by class."""

    transposed = False

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        shape = (n_in, n_out) if self.transposed else (n_out, n_in)
        super().__init__(torch.empty(k, *shape, 4, 4), n_out, n_in * (4 if self.transposed else 16))

    def forward(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """One grouped convolution."""
        weight, bias = self.chosen(which)
        k, each = x.shape[:2]
        convolve = nn.functional.conv_transpose2d if self.transposed else nn.functional.conv2d
        merged = x.transpose(0, 1).flatten(1, 2)
        convolved = convolve(merged, weight.flatten(0, 1), bias.flatten(), stride=2, padding=1, groups=k)
        return convolved.unflatten(1, (k, -1)).transpose(0, 1) if each else x.new_zeros(k, 0, *convolved.shape[1:])


class BankUpConv(BankConv):
    """x (k, B, c, h, w) -> (k, B, c', 2 h, 2 w): the transposed convolution."""

    transposed = True


class Shape(nn.Module):
    """x (k, B, ...) -> (k, B, *shape), cropped where x has more rows and columns."""

    def __init__(self, shape: tuple[int, ...], raw: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.shape, self.raw = shape, raw or shape

    def forward(self, x: Tensor) -> Tensor:
        """View and crop."""
        full = x.reshape(*x.shape[:2], *self.raw)
        return full if self.raw == self.shape else full[..., : self.shape[-2], : self.shape[-1]]


def decoder_bank(k: int, latent_dim: int, shape: tuple[int, ...], width: int) -> Bank:
    """Codes (k, B, latent_dim) -> inputs (k, B, *shape) in (0, 1).

    Images of more than 8 pixels a side are made by strided transposed convolutions of `width` times 1, 2, 4, ...
    channels, everything else by two hidden layers.
    """
    halvings = _halvings(shape)
    if not halvings:
        layers = [*_hidden(k, latent_dim), BankLinear(k, HIDDEN, prod(shape)), nn.Sigmoid(), Shape(shape)]
        return Bank(layers)
    channels, height, width_px = shape
    top = width * 2 ** (halvings - 1)
    small = tuple(ceil(side / 2**halvings) for side in (height, width_px))
    layers = [BankLinear(k, latent_dim, top * prod(small)), nn.LeakyReLU(0.2), Shape((top, *small))]
    for level in range(halvings - 1):
        layers += [BankUpConv(k, top // 2**level, top // 2 ** (level + 1)), nn.LeakyReLU(0.2)]
    full = (channels, *(side * 2**halvings for side in small))
    return Bank([*layers, BankUpConv(k, width, channels), nn.Sigmoid(), Shape(shape, full)])


def feature_bank(k: int, shape: tuple[int, ...], out: int, width: int) -> Bank:
    """Return inputs (k, B, *shape) -> (k, B, out): the mirror image of `decoder_bank`, as an encoder or as a critic."""
    halvings = _halvings(shape)
    if not halvings:
        return Bank([*_hidden(k, prod(shape)), BankLinear(k, HIDDEN, out)])
    channels, *sides = shape
    layers: list[nn.Module] = []
    for level in range(halvings):
        before = channels if level == 0 else width * 2 ** (level - 1)
        layers += [BankConv(k, before, width * 2**level), nn.LeakyReLU(0.2)]
        sides = [side // 2 for side in sides]
    return Bank([*layers, BankLinear(k, width * 2 ** (halvings - 1) * prod(sides), out)])


def _halvings(shape: tuple[int, ...]) -> int:
    return max(0, ceil(log2(max(shape[1:]) / SMALLEST_MAP))) if len(shape) == 3 else 0


def _hidden(k: int, n_in: int) -> list[nn.Module]:
    return [BankLinear(k, n_in, HIDDEN), nn.LeakyReLU(0.2), BankLinear(k, HIDDEN, HIDDEN), nn.LeakyReLU(0.2)]


# The built-in generative models: a bank of decoders, and one of encoders where there is one


class Generator(nn.Module):
    """One decoder per class: the generator of a WGAN. Images in (0, 1)."""

    value_range = (0.0, 1.0)
    code_parts = 0  # outputs of the encoder for each dimension of a code; no encoder where 0

    def __init__(self, num_classes: int, latent_dim: int, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.latent_dim, self.classes = latent_dim, range(num_classes)
        self.decoder = decoder_bank(num_classes, latent_dim, shape, width)
        if self.code_parts:
            self.encoder = feature_bank(num_classes, shape, self.code_parts * latent_dim, width)

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images (N, *shape) of codes (N, latent_dim)."""
        return grouped(self.decoder, latents, classes)


class Autoencoder(Generator):
    """A VAE per class (Kingma, Welling 2014, arXiv 1312.6114): `encode` gives the mean of the posterior."""

    code_parts = 2

    def encode(self, images: Tensor, classes: Tensor) -> Tensor:
        """Codes (N, latent_dim) of images (N, *shape)."""
        mean: Tensor = grouped(self.encoder, images, classes).chunk(2, dim=1)[0]
        return mean


class SphereAutoencoder(Generator):
    """An autoencoder whose codes lie on a sphere, as PIONEER's (Heljakka et al. 2018, arXiv 1807.03026).

    A code counts by its direction alone. Codes have length sqrt(n_L), that of a typical draw of N(0, I), so that the
    noise model of the Gaussian prior holds for them.
    """

    code_parts = 1

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images (N, *shape) of the directions of codes (N, latent_dim)."""
        return super().decode(on_sphere(latents), classes)

    def encode(self, images: Tensor, classes: Tensor) -> Tensor:
        """Codes (N, latent_dim) of length sqrt(latent_dim)."""
        return on_sphere(grouped(self.encoder, images, classes))


BUILTIN: dict[str, type[Generator]] = {"wgan-gp": Generator, "vae": Autoencoder, "sphere": SphereAutoencoder}


def on_sphere(codes: Tensor) -> Tensor:
    """Codes (..., n_L) scaled to length sqrt(n_L)."""
    return nn.functional.normalize(codes, dim=-1) * sqrt(codes.shape[-1])


def grouped(bank: Bank, x: Tensor, classes: Tensor) -> Tensor:
    """Rows x (N, ...) through the network of their class; (N, ...) in the same order. Only classes present are run."""
    if not len(x):
        empty: Tensor = bank(x[None, :0], classes.new_zeros(1))[0]
        return empty
    present, group = classes.unique(return_inverse=True)
    counts = torch.bincount(group)
    order = group.argsort(stable=True)
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=x.device) - (counts.cumsum(0) - counts)[group[order]]
    padded = x.new_zeros(len(present), int(counts.max()), *x.shape[1:])
    padded[group, rank] = x
    is_complete = len(present) == len(bank_weights(bank))
    rows: Tensor = bank(padded, None if is_complete else present)[group, rank]
    return rows


def bank_weights(bank: Bank) -> Tensor:
    """Return the weights of a bank's first layer; their length is the number of its networks."""
    return next(bank.parameters())
