"""Is a challenger not worse than the champion by more than a margin, on the same samples?

The paired 2x2 table has four cells; only the samples that flip matter: `gained` hold under the challenger alone, `lost`
under the champion alone. statsmodels 0.15 has neither interval for paired proportions.

Of a mean over samples, each a number in [-1, 1], such as a corrupted accuracy: a sample's many images are one cluster, and what is
drawn at random is the sample. Two models are paired by the difference of the shares of its images that they classify rightly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from windtunnel.core.statistics import binomial_interval

Method = Literal["tango", "newcombe"]
_NEAR = 1e-9  # two means that are no further apart are one


@dataclass(frozen=True, slots=True)
class Paired:
    """Counts of n paired samples: held under both, gained or lost by the second, held under neither."""

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def n(self) -> int:
        """The number of pairs."""
        return self.both + self.gained + self.lost + self.neither

    @property
    def difference(self) -> float:
        """Rate of the second minus rate of the first, in [-1, 1]."""
        return (self.gained - self.lost) / self.n


def paired_interval(table: Paired, alpha: float, method: Method) -> tuple[float, float]:
    """Interval of the difference whose lower end is a one-sided bound at level `alpha`, in [-1, 1].

    So the level of the two-sided interval is 1 - 2 alpha. Raises ValueError for no pairs.
    """
    if not table.n:
        raise ValueError("no paired samples")
    return INTERVAL[method](table, alpha)


def tango_interval(table: Paired, alpha: float) -> tuple[float, float]:
    """Return the score interval: all differences that the score test does not reject.

    Source: Tango 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B.
    """
    z, edge = float(ndtri(1 - alpha)), 1 - 1e-12
    # The statistic falls from + to - as the supposed difference grows, and is 0 at the observed one.
    observed = table.difference

    def end(level: float, outer: float) -> float:
        if abs(observed - outer) < 1e-9 or (_score(table, outer) - level) * (_score(table, observed) - level) > 0:
            return outer
        return _root(lambda delta: _score(table, delta) - level, min(observed, outer), max(observed, outer))

    return end(z, -edge), end(-z, edge)


def _score(table: Paired, delta: float) -> float:
    """Standardised distance of the observed difference from `delta`, under the variance that `delta` implies."""
    n, gained, lost = table.n, table.gained, table.lost
    # q: the maximum-likelihood probability of `lost` where the difference is delta (Tango's equation for q21).
    b = delta * (2 * n - gained + lost) - gained - lost
    c = -lost * delta * (1 - delta)
    q = (sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * q + delta * (1 - delta))
    distance = gained - lost - n * delta
    if variance <= 0:  # only where nothing flipped and nothing is supposed to: no distance either
        return 0.0
    return distance / sqrt(variance)


def newcombe_interval(table: Paired, alpha: float) -> tuple[float, float]:
    """Two Wilson intervals joined by the correlation of the pairs, with its continuity correction (method 10).

    Source: Newcombe 1998, doi:10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C.
    """
    n, level = table.n, 1 - 2 * alpha
    first, second = table.both + table.lost, table.both + table.gained
    (low1, high1), (low2, high2) = (binomial_interval(k, n, level, "wilson") for k in (first, second))
    p1, p2, phi = first / n, second / n, _correlation(table)

    def reach(first_rate: float, two: float) -> float:
        return sqrt(max(0.0, first_rate * first_rate - 2 * phi * first_rate * two + two * two))

    return table.difference - reach(p2 - low2, high1 - p1), table.difference + reach(high2 - p2, p1 - low1)


def _correlation(table: Paired) -> float:
    """Newcombe's phi; 0 where a margin is empty."""
    a, b, c, d = table.both, table.lost, table.gained, table.neither
    product = (a + b) * (c + d) * (a + c) * (b + d)
    if not product:
        return 0.0
    excess = a * d - b * c
    corrected = max(excess - table.n / 2, 0) if excess > 0 else excess
    return float(corrected / sqrt(product))


INTERVAL = {"tango": tango_interval, "newcombe": newcombe_interval}


def samples_needed(margin: float, alpha: float) -> int:
    """Return the number of pairs that the score test needs to show non-inferiority of a model that holds on just the same samples."""
    z = float(ndtri(1 - alpha))
    return ceil(z * z * (1 - margin) / margin)


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
    z = float(ndtri(1 - alpha))
    return _lower(values, counts, z), -_lower(-values[::-1], counts[::-1], z)


def _lower(values: NDArray[np.float64], counts: NDArray[np.int64], z: float) -> float:
    """Return the smallest mean that is not rejected, of distinct ascending values and how often each was observed."""
    n = int(counts.sum())
    mean = float(values @ counts) / n

    def excess(delta: float) -> float:
        return (mean - delta) * sqrt(n) - z * _deviation(values, counts / n, delta)

    # Just below the mean: at it both terms are 0 where all outcomes are equal.
    low, high = -1 + _NEAR, mean - _NEAR
    return -1.0 if high <= low or excess(low) <= 0 else _root(excess, low, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of `function` between two ends at which its signs differ."""
    from scipy.optimize import brentq  # half a second to import, which a gate without a champion need not spend

    return float(brentq(function, low, high))


def _deviation(values: NDArray[np.float64], weights: NDArray[np.float64], mean: float) -> float:
    """Return the standard deviation of the likeliest distribution on `values` and -1 whose mean is `mean`, below that of the weights.

    Its weights are w / (1 + t (v - mean)) with t the Lagrange multiplier; what t cannot do within its range, -1 takes over.
    """
    distance, last = values - mean, 1 / (1 + mean)

    def excess(t: float) -> float:
        return float(np.sum(weights * distance / (1 + t * distance)))

    if values[0] < -1 + _NEAR or excess(last) < 0:  # -1 was observed, or need not be supposed
        last = _root(excess, 0, last * (1 - 1e-12))
    tilted = weights / (1 + last * distance)
    variance = float(tilted @ distance**2) + (1 - float(tilted.sum())) * (1 + mean) ** 2
    return sqrt(max(0.0, variance))
