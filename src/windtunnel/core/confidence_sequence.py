"""A confidence sequence of a mean of values in [0, 1]: intervals that are valid at all sample sizes at once."""

from __future__ import annotations

from collections.abc import Iterable
from math import log

import numpy as np

_CUT = 0.75  # largest share of the capital that one bet may lose
# Bets are the best ones for a decision at so many values, later for one at the present n. The paper's, for n log(1 + n), decide a
# difference of 10 points about twice as late (benchmarks/sequential.py); any bet that only the past decides is valid.
_AIM = 100


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
        limit = log(2 / self.alpha)  # half of the capital for each direction
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
