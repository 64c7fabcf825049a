"""Is a mean over samples not worse by more than a margin? Each sample gives one number in [-1, 1].

A corrupted accuracy is such a mean: a sample's many images are one cluster, and what is drawn at random is the sample. Two
models are paired by the difference of the shares of its images that they classify rightly.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

_NEAR = 1e-9  # two means that are no further apart are one


def mean_interval(differences: Sequence[float], alpha: float) -> tuple[float, float]:
    """Score interval of the mean of `differences` (n,), each in [-1, 1]; its lower end is a one-sided bound at level `alpha`.

    All means that the score test does not reject: the observed mean is held against the standard error that the supposed
    mean implies. That one is of the distribution of highest likelihood among those that have the supposed mean and live on
    what was observed and on -1 and 1: equal outcomes alone do not show that a sample on which everything is lost cannot
    be. Where each difference is -1, 0 or 1 this is Tango's interval; for many samples it is the paired t interval.
    Sources: Tango 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B; Owen 2001, Empirical
    Likelihood, chapter 2, for the constrained likelihood. Raises ValueError for no differences.
    """
    if not len(differences):
        raise ValueError("no paired samples")
    values, counts = np.unique(np.asarray(differences, float), return_counts=True)
    z = float(norm.ppf(1 - alpha))
    return _lower(values, counts, z), -_lower(-values[::-1], counts[::-1], z)


def _lower(values: NDArray[np.float64], counts: NDArray[np.int64], z: float) -> float:
    """Return the smallest mean that is not rejected, of distinct ascending values and how often each was observed."""
    n = int(counts.sum())
    mean = float(values @ counts) / n

    def excess(delta: float) -> float:
        return (mean - delta) * sqrt(n) - z * _deviation(values, counts / n, delta)

    # Just below the mean: at it both terms are 0 where all outcomes are equal.
    low, high = -1 + _NEAR, mean - _NEAR
    return -1.0 if high <= low or excess(low) <= 0 else float(brentq(excess, low, high))


def _deviation(values: NDArray[np.float64], weights: NDArray[np.float64], mean: float) -> float:
    """Return the standard deviation of the likeliest distribution on `values` and -1 whose mean is `mean`, below that of the weights.

    Its weights are w / (1 + t (v - mean)) with t the Lagrange multiplier; what t cannot do within its range, -1 takes over.
    """
    distance, last = values - mean, 1 / (1 + mean)

    def excess(t: float) -> float:
        return float(np.sum(weights * distance / (1 + t * distance)))

    if values[0] < -1 + _NEAR or excess(last) < 0:  # -1 was observed, or need not be supposed
        last = float(brentq(excess, 0, last * (1 - 1e-12)))
    tilted = weights / (1 + last * distance)
    variance = float(tilted @ distance**2) + (1 - float(tilted.sum())) * (1 + mean) ** 2
    return sqrt(max(0.0, variance))
