"""Latent codes of real images."""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.boundary.generators.interface import Generators
from windtunnel.params.latent import Encoding


def uses_search(encoding: Encoding, generators: Generators) -> bool:
    """Return whether codes are searched: where that is asked for, or where the generative model has no encoder."""
    return encoding.by == "search" or not generators.has_encoder


def encode(
    generators: Generators, inputs: Tensor, classes: Tensor, encoding: Encoding, generator: torch.Generator
) -> Tensor:
    """Codes (N, n_L) of inputs (N, ...) of `classes` (N,): by the encoder, or by `search_codes`."""
    if uses_search(encoding, generators):
        return search_codes(generators, inputs, classes, encoding, generator)
    with torch.no_grad():
        return generators.encode(inputs, classes).detach()


def search_codes(
    generators: Generators, inputs: Tensor, classes: Tensor, encoding: Encoding, generator: torch.Generator
) -> Tensor:
    """The codes (N, n_L) whose images are nearest in mean square: Adam from N(0, I), all images and restarts at once.

    Adam works element by element, so a code does not depend on those beside it. Best of the restarts by final error.
    """
    n, restarts = len(inputs), encoding.restarts
    codes = torch.randn(n * restarts, generators.latent_dim, generator=generator).to(inputs.device).requires_grad_()
    repeated, labels = inputs.repeat_interleave(restarts, 0), classes.repeat_interleave(restarts)
    optimiser = torch.optim.Adam([codes], lr=encoding.learning_rate)

    def errors() -> Tensor:
        return (generators.decode(codes, labels) - repeated).square().flatten(1).mean(1)

    for _ in range(encoding.steps):
        optimiser.zero_grad()
        (codes.grad,) = torch.autograd.grad(errors().sum(), codes)
        optimiser.step()
    with torch.no_grad():
        best = errors().view(n, restarts).argmin(1)
    return codes.detach().view(n, restarts, -1)[torch.arange(n, device=codes.device), best]
