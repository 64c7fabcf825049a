"""Rates with their intervals, and whether two of them differ on the same samples."""

from scipy.stats import binomtest
from torch import Tensor

from windtunnel.core.statistics import binomial_interval

ALPHA = 0.05


def discordant(first: Tensor, other: Tensor) -> tuple[int, int]:
    """Return how many samples are in the first mask alone, and how many in the other alone."""
    return int((first & ~other).sum()), int((other & ~first).sum())


def significantly_more(more: int, less: int, among: int = 1, alpha: float = ALPHA) -> bool:
    """One-sided exact McNemar: whether `more` discordant samples one way are too many for `less` the other way.

    among: how many such questions are asked at once, any of which flags (Bonferroni).
    """
    return more + less > 0 and binomtest(more, more + less, 0.5, alternative="greater").pvalue < alpha / among


def rate_interval(mask: Tensor) -> tuple[float, float, float]:
    """(rate, low, high) of a boolean mask, with the 95 % Wilson interval."""
    right, n = int(mask.sum()), len(mask)
    low, high = binomial_interval(right, n)
    return (right / n if n else 0.0), low, high
