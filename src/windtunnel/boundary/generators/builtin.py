"""The built-in generative models: banks of one decoder, and one encoder where there is one, per class."""

from math import sqrt

import torch
from torch import Tensor, nn

from windtunnel.boundary.generators.banks import Bank, decoder_bank, feature_bank


class Generator(nn.Module):
    """One decoder per class: the generator of a WGAN. Images in (0, 1)."""

    value_range = (0.0, 1.0)

    def __init__(self, num_classes: int, latent_dim: int, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.latent_dim, self.classes = latent_dim, range(num_classes)
        self.decoder = decoder_bank(num_classes, latent_dim, shape, width)

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images (N, *shape) of codes (N, latent_dim)."""
        return grouped(self.decoder, latents, classes)


class Autoencoder(Generator):
    """A VAE per class (Kingma, Welling 2014, arXiv 1312.6114): `encode` gives the mean of the posterior."""

    def __init__(self, num_classes: int, latent_dim: int, shape: tuple[int, ...], width: int) -> None:
        super().__init__(num_classes, latent_dim, shape, width)
        self.encoder = feature_bank(num_classes, shape, 2 * latent_dim, width)

    def encode(self, images: Tensor, classes: Tensor) -> Tensor:
        """Codes (N, latent_dim) of images (N, *shape)."""
        mean: Tensor = grouped(self.encoder, images, classes).chunk(2, dim=1)[0]
        return mean


class SphereAutoencoder(Generator):
    """An autoencoder whose codes lie on a sphere, as PIONEER's (Heljakka et al. 2018, arXiv 1807.03026).

    A code counts by its direction alone. Codes have length sqrt(n_L), that of a typical draw of N(0, I), so that the
    noise model of the Gaussian prior holds for them.
    """

    def __init__(self, num_classes: int, latent_dim: int, shape: tuple[int, ...], width: int) -> None:
        super().__init__(num_classes, latent_dim, shape, width)
        self.encoder = feature_bank(num_classes, shape, latent_dim, width)

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
