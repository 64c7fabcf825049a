"""Confidence intervals of binomial rates, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtri

IntervalMethod = Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"]

_STATSMODELS_NAME = {"clopper_pearson": "beta", "jeffreys": "jeffreys", "agresti_coull": "agresti_coull"}


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
    Source: Brown, Cai, DasGupta 2001, doi:10.1214/ss/1009213286; computed by statsmodels, but for Wilson's.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be in [0, n], got {successes} of {n}")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if n == 0:
        return 0.0, 1.0
    low, high = _wilson(successes, n, level) if method == "wilson" else _by_statsmodels(successes, n, level, method)
    # Rounding leaves 1.7e-18 for Wilson's lower end at 0 of 200: above the estimate, so that a figure's error bar is negative.
    value = successes / n
    low = 0.0 if successes == 0 else max(0.0, min(low, value))
    high = 1.0 if successes == n else min(1.0, max(high, value))
    return low, high


def _wilson(successes: float, n: int, level: float) -> tuple[float, float]:
    """Compute what statsmodels does, to the last bit: nearly every stage needs this one, and statsmodels takes a second to import."""
    z, p = -float(ndtri((1 - level) / 2)), successes / n
    z2 = z**2
    scale = 1 + z2 / n
    centre = (p + z2 / (2 * n)) / scale
    half = z * math.sqrt(p * (1.0 - p) / n + z2 / (4.0 * n**2)) / scale
    return centre - half, centre + half


def _by_statsmodels(successes: float, n: int, level: float, method: IntervalMethod) -> tuple[float, float]:
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, n, alpha=1 - level, method=_STATSMODELS_NAME[method])
    return float(low), float(high)


def binomial_rate(successes: int, n: int, level: float = 0.95, method: IntervalMethod = "wilson") -> BinomialRate:
    """Return the rate of `successes` in `n` with its interval (see `binomial_interval`)."""
    low, high = binomial_interval(successes, n, level, method)
    return BinomialRate(successes, n, low, high)
