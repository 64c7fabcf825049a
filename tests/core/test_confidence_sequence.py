"""Confidence sequences: the true mean is inside at all sample sizes at once. benchmarks/sequential.py has 10,000 streams."""

import numpy as np
import pytest

from windtunnel.core.statistics import BettingSequence

STREAMS, N = 100, 300


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_the_true_rate_is_inside_at_every_n(rate):
    rng = np.random.default_rng(int(rate * 100))
    misses = 0
    for stream in (rng.random((STREAMS, N)) < rate).astype(float):
        sequence = BettingSequence(0.05, points=101)
        sequence.add(stream)  # bounds never widen again, so the last ones say whether any missed
        misses += not sequence.lower <= rate <= sequence.upper
    assert misses <= 11  # 5 % of 100; more than 11 has a probability below 0.5 %


def test_values_in_batches_give_the_same_bounds_as_one_by_one():
    values = np.random.default_rng(0).random(90)
    whole, parts = BettingSequence(0.05), BettingSequence(0.05)
    whole.add(values)
    for part in np.split(values, 9):
        parts.add(part)
    assert (whole.lower, whole.upper, whole.mean, whole.n) == (parts.lower, parts.upper, parts.mean, parts.n)


def test_small_variance_gives_narrow_bounds():
    sequence = BettingSequence(0.05)
    sequence.add([0.5, 0.51] * 100)
    assert sequence.upper - sequence.lower < 0.06
    assert sequence.lower < 0.505 < sequence.upper
