"""The gate decided from samples that arrive batch by batch."""

import numpy as np
import pytest

from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.sequential import SequentialGate
from windtunnel.params.results import Gate
from windtunnel.records.gate import Decision, OutcomeRecord, Outcomes, Shares

METRIC = "worst_case/accuracy"


def record(first, held, protocol="p", metric=METRIC):
    names = tuple(f"{first + i}" for i in range(len(held)))
    return OutcomeRecord("m", names, {metric: Outcomes(protocol, "".join("1" if h else "0" for h in held))})


def decided(gate, rows, champion=None):
    """(decision, samples) of batches of 50."""
    state = SequentialGate(gate, champion)
    for i in range(0, len(rows), 50):
        if decision := state.add(record(i, rows[i : i + 50])):
            return decision, i + 50
    return None, len(rows)


@pytest.mark.parametrize(("rate", "expected"), [(0.8, Decision.PASSED), (0.4, Decision.FAILED)])
def test_a_clear_rate_is_decided_early(rate, expected):
    rows = np.random.default_rng(1).random(1000) < rate
    decision, n = decided(Gate(minimum={METRIC: 0.6}), rows)
    assert decision is expected
    assert n <= 200


def test_a_rate_at_the_threshold_stays_undecided():
    rows = np.arange(1000) % 5 < 3
    assert decided(Gate(minimum={METRIC: 0.6}), rows) == (None, 1000)


def test_no_pass_before_the_smallest_number_of_samples():
    rows = np.ones(1000, dtype=bool)
    assert decided(Gate(minimum={METRIC: 0.6}, minimum_samples=400), rows) == (Decision.PASSED, 400)


@pytest.mark.parametrize(("lost", "expected"), [(0.0, Decision.PASSED), (0.3, Decision.FAILED)])
def test_differences_to_the_champion_are_paired_by_name(lost, expected):
    rng = np.random.default_rng(2)
    before = rng.random(1000) < 0.6
    after = before & (rng.random(1000) >= lost)
    champion = record(0, before[::-1])
    champion = OutcomeRecord("c", tuple(str(i) for i in range(999, -1, -1)), champion.outcomes)
    decision, n = decided(Gate(maximum_regression={METRIC: 0.05}), after, champion)
    assert decision is expected
    assert n < 1000


def test_other_conditions_are_refused_in_one_line():
    state = SequentialGate(Gate(minimum={"clean/ece": 0.1}))
    with pytest.raises(UserError, match=r"^gate\.minimum\.clean/ece: is no mean of per-sample outcomes.*worst_case"):
        state.add(record(0, [1]))
    with pytest.raises(UserError, match="no condition is set"):
        SequentialGate(Gate())
    state = SequentialGate(Gate(maximum_regression={METRIC: 0.1}), record(0, [1], protocol="other"))
    with pytest.raises(UserError, match="another protocol"):
        state.add(record(0, [1]))


def test_shares_of_images_count_as_values_between_0_and_1():
    state = SequentialGate(Gate(minimum={"blur/corrupted_accuracy": 0.2}))
    state.add(OutcomeRecord("m", ("a", "b", "c"), {"blur/corrupted_accuracy": Shares("p", (5, None, 0), 10)}))
    assert state.conditions[0].value == pytest.approx(0.25)
    assert state.conditions[0].passing.n == 2
