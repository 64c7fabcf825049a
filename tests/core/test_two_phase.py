"""The interval of two-phase sampling covers the true rate, and is Wilson's where everything is tried."""

import numpy as np
import pytest

from windtunnel.core.statistics import binomial_interval, two_phase_rate

STREAMS = 2000


@pytest.mark.parametrize(
    ("certain", "undecided", "rate"), [(0, 0.7, 0.8), (0.4, 0.3, 0.5), (0, 0.9, 0.97), (0, 0.3, 0.1)]
)
@pytest.mark.parametrize(("n", "tried"), [(1000, 50), (200, 40)])
def test_the_interval_covers_the_rate_of_the_population(certain, undecided, rate, n, tried):
    rng, truth = np.random.default_rng(0), certain + undecided * rate
    covered, widths = 0, 0.0
    for safe, left, _ in rng.multinomial(n, [certain, undecided, 1 - certain - undecided], STREAMS):
        drawn = min(tried, left)
        robust = rng.binomial(left, rate)  # of all undecided ones, had the second phase been run on each
        found = two_phase_rate(
            n, int(safe), int(left), int(rng.hypergeometric(robust, left - robust, drawn)), int(drawn)
        )
        covered += found.low <= truth <= found.high
        widths += found.high - found.low
    assert covered / STREAMS >= 0.94
    of_the_draw = binomial_interval(truth * tried, tried)  # had the second phase alone been run, on so many samples
    assert widths / STREAMS < of_the_draw[1] - of_the_draw[0]


def test_with_every_undecided_sample_tried_it_is_the_interval_of_one_phase():
    found = two_phase_rate(100, 20, 50, 30, 50)
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx(binomial_interval(50, 100))


def test_a_second_phase_without_a_failure_is_not_taken_for_certainty():
    found = two_phase_rate(1000, 0, 900, 10, 10)
    assert found.value == 0.9
    assert found.low < 0.7


@pytest.mark.parametrize("counts", [(10, 0, 5, 0, 0), (10, 0, 5, 1, 6), (10, 6, 5, 1, 1)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="tried must be"):
        two_phase_rate(*counts)
