"""Generative models as users bring them, most of them with a mistake."""

import torch
from torch import nn


class Own(nn.Module):
    """Images in [-1, 1], decoder only."""

    latent_dim = 5
    value_range = (-1.0, 1.0)

    def __init__(self, side=8):
        super().__init__()
        self.layer, self.side = nn.Linear(5, side * side), side

    def decode(self, latents, classes):
        return self.layer(latents).tanh().view(-1, 1, self.side, self.side)


class WithEncoder(Own):
    def encode(self, images, classes):
        return images.flatten(1)[:, :5]


class NarrowEncoder(Own):
    def encode(self, images, classes):
        return images.flatten(1)[:, :3]


class NotANumber(Own):
    def decode(self, latents, classes):
        return torch.where((classes == 7).view(-1, 1, 1, 1), torch.nan, super().decode(latents, classes))


class FewClasses(Own):
    classes = range(8)


class WideRange(Own):
    value_range = (0.0, 1.0)


class OtherDimension(Own):
    latent_dim = 9


class NoDecoder:
    latent_dim = 3


def fails():
    raise RuntimeError("no such checkpoint")
