"""The noise of the latent space: small changes of a code that keep it a draw of N(0, I) (arXiv 2003.01993, section 4.3).

l' = (l + eps z) / sqrt(1 + eps^2) with z ~ N(0, I): given l, l' ~ N(l / sqrt(1 + eps^2), eps^2 / (1 + eps^2) I).
"""

from math import log, pi, sqrt

import torch
from torch import Tensor


def shrink(epsilon: float) -> float:
    """1 / sqrt(1 + eps^2): the factor between a code and the mean of its noisy versions."""
    return 1 / sqrt(1 + epsilon**2)


def decay(epsilon: float) -> float:
    """Decay factor d = 1 - 1 / sqrt(1 + eps^2), in [0, 1): the share of a code that is lost on average."""
    return 1 - shrink(epsilon)


def perturb(latents: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """One noisy version of each code (N, n_L); N(0, I) in gives N(0, I) out. `generator` is on the CPU."""
    noise = torch.randn(latents.shape, generator=generator).to(latents)
    return (latents + epsilon * noise) * shrink(epsilon)


def scaled_norm(changes: Tensor) -> Tensor:
    """||dl||_2 / sqrt(n_L) of changes (N, ...) -> (N,): about 1 for a draw of N(0, I), whatever n_L."""
    flat = changes.flatten(1)
    length: Tensor = torch.linalg.vector_norm(flat, dim=1)
    return length / sqrt(flat.shape[1])


def log_likelihood(norm: Tensor, epsilon: float, latent_dim: int) -> Tensor:
    """Log density of a change of scaled norm `norm` from the decayed code: c1 - c2 n_L norm^2."""
    c1, c2 = _constants(epsilon, latent_dim)
    return c1 - c2 * latent_dim * norm**2


def _constants(epsilon: float, latent_dim: int) -> tuple[float, float]:
    variance = epsilon**2 / (1 + epsilon**2)
    return -0.5 * latent_dim * log(2 * pi * variance), 1 / (2 * variance)
