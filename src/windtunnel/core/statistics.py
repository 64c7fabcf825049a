"""Statistics of metrics: intervals of binomial rates, the paired bootstrap, confidence sequences and medians."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

IntervalMethod = Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"]

_PRIOR = {
    "clopper_pearson": (0.0, 1.0),
    "jeffreys": (0.5, 0.5),
}  # added to the counts for the lower end, the other way for the upper
# Of nearly every interval: scipy, which takes a third of a second to import, is for other levels.
_USUAL_LEVEL, _USUAL_QUANTILE = 0.95, 1.959963984540054
RESAMPLES = 1000
NOT_REACHED = "not reached"
_CUT = 0.75  # largest share of the capital that one bet may lose
# Bets are the best ones for a decision at so many values, later for one at the present n. The paper's, for n log(1 + n), decide a
# difference of 10 points about twice as late (benchmarks/sequential.py); any bet that only the past decides is valid.
_AIM = 100


@dataclass(frozen=True, slots=True)
class BinomialRate:
    """A binomial rate with its interval: `value` = `successes` / `n`, all fractions in [0, 1]; NaN-free for n = 0."""

    successes: float
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The point estimate; 0 for n = 0, where the interval is (0, 1)."""
        return self.successes / self.n if self.n else 0.0

    def metrics(self, name: str) -> dict[str, float]:
        """`{name}`, `{name}_ci_low`, `{name}_ci_high`: the form in which a rate enters `metrics`."""
        return {name: self.value, f"{name}_ci_low": self.low, f"{name}_ci_high": self.high}


def binomial_interval(
    successes: float, n: int, level: float = 0.95, method: IntervalMethod = "wilson"
) -> tuple[float, float]:
    """Two-sided interval of a binomial rate, as fractions in [0, 1] that include the estimate; (0, 1) for n = 0.

    The lower end at 0 and the upper end at n are exactly 0 and 1, as Brown, Cai and DasGupta set Jeffreys' too.

    `successes` may be a sum of n values in [0, 1], such as accuracies per image over many corruptions: no such mean varies
    more than a binomial rate of the same value, so the interval is never too narrow for it.
    Raises ValueError if successes is outside [0, n] or level outside (0, 1).
    Source: Brown, Cai, DasGupta 2001, doi:10.1214/ss/1009213286; to the last bit what statsmodels computes, which takes a second to import.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be in [0, n], got {successes} of {n}")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if n == 0:
        return 0.0, 1.0
    low, high = _wilson(successes, n, level) if method == "wilson" else _beta_interval(successes, n, level, method)
    # Rounding leaves 1.7e-18 for Wilson's lower end at 0 of 200: above the estimate, so that a figure's error bar is negative.
    value = successes / n
    low = 0.0 if successes == 0 else max(0.0, min(low, value))
    high = 1.0 if successes == n else min(1.0, max(high, value))
    return low, high


def _wilson(successes: float, n: int, level: float) -> tuple[float, float]:
    z, p = _normal_quantile(level), successes / n
    z2 = z**2
    scale = 1 + z2 / n
    centre = (p + z2 / (2 * n)) / scale
    half = z * math.sqrt(p * (1.0 - p) / n + z2 / (4.0 * n**2)) / scale
    return centre - half, centre + half


def _normal_quantile(level: float) -> float:
    """Return the upper (1 - level) / 2 quantile of the standard normal distribution, as scipy rounds it."""
    if level == _USUAL_LEVEL:
        return _USUAL_QUANTILE
    from scipy.special import ndtri

    return -float(ndtri((1 - level) / 2))


def _beta_interval(successes: float, n: int, level: float, method: IntervalMethod) -> tuple[float, float]:
    """Return the interval by quantiles of beta distributions; that of Agresti and Coull by statsmodels. NaN where an end is 0 or 1."""
    if method not in _PRIOR:
        from statsmodels.stats.proportion import proportion_confint

        low, high = proportion_confint(successes, n, alpha=1 - level, method=method)
        return float(low), float(high)
    from scipy.special import betainccinv, betaincinv

    less, more = _PRIOR[method]
    tail, failures = (1 - level) / 2, n - successes
    low = betaincinv(successes + less, failures + more, tail)
    return float(low), float(betainccinv(successes + more, failures + less, tail))


def binomial_rate(successes: int, n: int, level: float = 0.95, method: IntervalMethod = "wilson") -> BinomialRate:
    """Return the rate of `successes` in `n` with its interval (see `binomial_interval`)."""
    low, high = binomial_interval(successes, n, level, method)
    return BinomialRate(successes, n, low, high)


def two_phase_rate(n: int, certain: int, undecided: int, successes: int, tried: int) -> BinomialRate:
    """Return the rate over n samples of which a random part of the undecided ones was tried, with its 95 % interval.

    The first phase finds `certain` successes and leaves `undecided` samples open; of these, `tried` are drawn at random and
    `successes` of them succeed. The estimate is stratified: (certain + undecided * successes / tried) / n. Its variance is that
    of the rate over n samples plus that of the second phase, with the finite-population correction for the drawn part; each
    variance is recovered from the Wilson limits of its phase, so the interval is valid near 0 and 1 too. With every undecided
    sample tried it is Wilson's interval.
    Source: Cochran 1977, Sampling Techniques, theorem 12.1 (double sampling for stratification); Zou, Donner 2008,
    doi:10.1002/sim.3095 (variance estimates recovery).
    Raises ValueError where nothing was tried, or more than is undecided.
    """
    if not 0 < tried <= undecided <= n - certain:
        raise ValueError(f"tried must be in [1, undecided], got {tried} of {undecided}, {certain} certain, of {n}")
    weight = undecided / n
    value = certain / n + weight * successes / tried
    first = binomial_interval(value * n, n)
    second = binomial_interval(successes, tried)
    scale = weight * math.sqrt(1 - tried / undecided)
    low, high = (
        math.hypot(value - limit, scale * (successes / tried - second_limit))
        for limit, second_limit in zip(first, second, strict=True)
    )
    return BinomialRate(value * n, n, max(0.0, value - low), min(1.0, value + high))


def bootstrap_means(values: np.ndarray) -> np.ndarray:
    """Means of each of P series over images drawn with replacement, the same draw for all: (P, N) -> (RESAMPLES, P) float64.

    Correlated series (one image under several corruptions, two models on one image) stay correlated. The seed is fixed:
    it is no part of the evidence, and a metric is the same whoever computes it again.
    Source: Efron, Tibshirani 1993, An Introduction to the Bootstrap.
    """
    generator = np.random.default_rng(0)
    n = values.shape[1]
    draws = (np.bincount(generator.integers(0, n, n), minlength=n) for _ in range(RESAMPLES))
    means: np.ndarray = np.stack([values @ counts for counts in draws]) / n
    return means


def percentile_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the central `level` of bootstrapped values (resamples,)."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def median(values: Iterable[float]) -> float | None:
    """Return the median of values of which some may be censored (infinite); None for no values and where it is not reached."""
    numbers = [float(value) for value in values]
    middle = statistics.median(numbers) if numbers else math.inf
    return middle if math.isfinite(middle) else None


def median_metric(name: str, values: Iterable[float]) -> dict[str, float | str]:
    """Return the median as a metric; if it is censored, omit the number and add `<name>_status`."""
    numbers = list(values)
    middle = median(numbers)
    if middle is not None:
        return {name: middle}
    return {f"{name}_status": NOT_REACHED} if numbers else {}


class BettingSequence:
    """Hedged capital process with predictable plug-in bets; the bounds are intersected over time.

    The true mean is inside at every n with probability 1 - alpha at least, for independent values of one distribution,
    whatever rule decides when to stop. Everything between two neighbours of a grid of possible means is kept.

    Source: Waudby-Smith, Ramdas 2023, arXiv 2010.09686, theorem 3; the bets as equation 26 without its logarithm.

    Attributes:
        n: how many values were seen.
        mean: their mean, 0.5 before the first.
        lower, upper: the bounds now.
    """

    def __init__(self, alpha: float, points: int = 1001) -> None:
        self.alpha, self.n, self.mean, self.lower, self.upper = alpha, 0, 0.5, 0.0, 1.0
        self._grid = np.linspace(0, 1, points)
        self._log_up, self._log_down = np.zeros(points), np.zeros(points)
        self._total, self._spread, self._variance = 0.0, 0.25, 0.25

    def add(self, values: Iterable[float]) -> None:
        """Continue the sequence by more values, in the order in which they were drawn."""
        limit = math.log(2 / self.alpha)  # half of the capital for each direction
        with np.errstate(divide="ignore"):
            most_up, most_down = _CUT / self._grid, _CUT / (1 - self._grid)
        for value in values:
            self.n += 1
            bet = (2 * limit / (self._variance * max(self.n, _AIM))) ** 0.5
            self._log_up += np.log1p(np.minimum(bet, most_up) * (value - self._grid))
            self._log_down += np.log1p(-np.minimum(bet, most_down) * (value - self._grid))
            self._total += value
            self.mean = self._total / self.n
            smoothed = (0.5 + self._total) / (self.n + 1)
            self._spread += (value - smoothed) ** 2
            self._variance = self._spread / (self.n + 1)
            # Capital against small means rises with values above them, so each side is a ray.
            rejected_below = np.flatnonzero(self._log_up >= limit)
            rejected_above = np.flatnonzero(self._log_down >= limit)
            if len(rejected_below):
                self.lower = max(self.lower, float(self._grid[rejected_below[-1]]))
            if len(rejected_above):
                self.upper = min(self.upper, float(self._grid[rejected_above[0]]))
