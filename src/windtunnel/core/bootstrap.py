"""The paired bootstrap: images are resampled, and everything known of an image goes with it."""

from __future__ import annotations

import numpy as np

RESAMPLES = 1000


def bootstrap_means(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Means of each of P series over images drawn with replacement, the same draw for all: (P, N) -> (resamples, P) float64.

    Correlated series (one image under several corruptions, two models on one image) stay correlated. The seed is fixed:
    it is no part of the evidence, and a metric is the same whoever computes it again.
    Source: Efron, Tibshirani 1993, An Introduction to the Bootstrap.
    """
    generator = np.random.default_rng(seed)
    n = values.shape[1]
    draws = (np.bincount(generator.integers(0, n, n), minlength=n) for _ in range(resamples))
    means: np.ndarray = np.stack([values @ counts for counts in draws]) / n
    return means


def percentile_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the central `level` of bootstrapped values (resamples,)."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
