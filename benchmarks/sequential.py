"""Sequential decisions: coverage of the confidence sequence, and how many samples a decision takes.

    python -m benchmarks.sequential [--streams 10000] [--n 1000]

1. Share of streams whose true rate lies inside at every n, for rates 0.05 to 0.95. Wanted: at least 0.95.
2. Mean number of samples until a rate that is 10 points from its threshold is decided, over n. Wanted: at most a third.
"""

from __future__ import annotations

import argparse
from math import log

import numpy as np

from windtunnel.core.statistics import _AIM, _CUT, BettingSequence


def coverage(rate: float, streams: int, n: int, alpha: float = 0.05) -> float:
    """Return the share of streams in which the capital against the true rate never reaches 2 / alpha; all streams at once."""
    x = (np.random.default_rng(round(rate * 1000)).random((streams, n)) < rate).astype(float)
    up, down, inside = np.zeros(streams), np.zeros(streams), np.ones(streams, dtype=bool)
    total, spread, variance, limit = np.zeros(streams), np.full(streams, 0.25), np.full(streams, 0.25), log(2 / alpha)
    for t in range(1, n + 1):
        value = x[:, t - 1]
        bet = np.sqrt(2 * limit / (variance * max(t, _AIM)))
        up += np.log1p(np.minimum(bet, _CUT / rate) * (value - rate))
        down += np.log1p(-np.minimum(bet, _CUT / (1 - rate)) * (value - rate))
        inside &= (up < limit) & (down < limit)
        total += value
        spread += (value - (0.5 + total) / (t + 1)) ** 2
        variance = spread / (t + 1)
    return float(inside.mean())


def samples_to_decide(rate: float, threshold: float, n: int, streams: int = 200, batch: int = 10) -> float:
    """Return the mean number of samples until the sequence excludes the threshold."""
    rng, taken = np.random.default_rng(0), []
    for _ in range(streams):
        sequence = BettingSequence(0.05, points=201)
        while sequence.n < n and sequence.lower <= threshold <= sequence.upper:
            sequence.add((rng.random(batch) < rate).astype(float))
        taken.append(sequence.n)
    return float(np.mean(taken))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--n", type=int, default=1000)
    asked = parser.parse_args()
    print("rate   coverage")
    for rate in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        print(f"{rate:4.2f}   {coverage(rate, asked.streams, asked.n):.4f}")
    print("rate   threshold   samples / n")
    for rate, threshold in ((0.15, 0.25), (0.4, 0.5), (0.5, 0.6), (0.6, 0.5), (0.8, 0.7), (0.95, 0.85)):
        print(f"{rate:4.2f}   {threshold:9.2f}   {samples_to_decide(rate, threshold, asked.n) / asked.n:.3f}")


if __name__ == "__main__":
    main()
