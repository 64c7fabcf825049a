"""`windtunnel check --minutes --width`: the proposed samples keep to both, and are the best allocation."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from windtunnel.cli import compatibility
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate
from windtunnel.operations import estimate
from windtunnel.operations.estimate import plan, samples_for, widest_interval
from windtunnel.reporting.answers import RoomAnswer


def measured(name, each, samples=100, skipped=""):
    return estimate.Estimate(name, samples, 10, each * 10, each * samples, 0, 0, skipped)


@pytest.mark.parametrize("width", [0.02, 0.05, 0.1, 0.5, 0.9])
def test_the_samples_for_a_width_are_the_fewest(width):
    n = samples_for(width)
    assert widest_interval(n) <= width
    assert n == 1 or widest_interval(n - 1) > width


def test_a_width_of_five_points_needs_the_samples_that_the_textbook_says():
    assert samples_for(0.05) == pytest.approx(4 * 1.96**2 * 0.25 / 0.05**2, rel=0.01)


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=6), st.floats(1.0, 5000), st.sampled_from([None, 0.05, 0.2]))
def test_the_time_is_kept_and_used(costs, seconds, width):
    rows = [measured(f"attacks.a{i}", each) for i, each in enumerate(costs)]
    costs = [row.seconds / row.samples for row in rows]  # as rounded
    if sum(costs) > seconds:
        with pytest.raises(UserError, match="--minutes"):
            plan(rows, 1000, seconds, width)
        return
    planned = plan(rows, 1000, seconds, width)
    most = min(1000, samples_for(width)) if width else 1000
    assert sum(entry.seconds for entry in planned) <= seconds * (1 + 1e-9)
    assert all(1 <= entry.samples <= most for entry in planned)
    if any(entry.samples < most for entry in planned):  # else there is time for more
        assert sum(entry.seconds for entry in planned) + sum(costs) + max(costs) > seconds


def test_a_cheap_entry_gets_more_samples_by_the_root_of_its_cost():
    cheap, dear = plan([measured("attacks.a", 0.01), measured("attacks.b", 1.0)], 10_000, 110.0, None)
    assert cheap.samples == pytest.approx(10 * dear.samples, rel=0.1)


def test_without_a_time_every_entry_gets_what_the_width_needs_or_the_data_has():
    rows = [measured("attacks.a", 1.0), measured("latent.b", 0.0, skipped="not measured")]
    assert [(p.name, p.samples) for p in plan(rows, 10_000, None, 0.1)] == [("attacks.a", samples_for(0.1))]
    assert plan(rows, 50, None, 0.1)[0].samples == 50


def test_attacks_pay_for_the_witness():
    attack, bound = plan([measured("attacks.a", 1.0), measured("verification.b", 1.0)], 10, None, 0.5, surcharge=0.2)
    assert attack.seconds == pytest.approx(1.2 * bound.seconds)


def test_the_lines_to_paste_are_valid_params(monkeypatch):
    raw = {
        "data": {"source": "digits", "samples": {"n": 200}},
        "model": {"source": "train"},
        "budget": {"norm": "Linf", "epsilon": 0.1},
        "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM"}},
    }
    params = validate(raw)
    monkeypatch.setattr(estimate, "estimates", lambda *_: iter([measured("attacks.fgsm", 1.0, 200)]))
    monkeypatch.setattr(estimate, "checks_cost", lambda *_: None)
    console = Console(file=io.StringIO(), width=200)
    before = RoomAnswer(disk_bytes=1, memory_bytes=1, workers=1, seconds=None, entries=[])

    answer = compatibility.print_estimate(
        params, None, range(200), None, console, before, compatibility.Measurement(True, 1.0, 0.05)
    )
    printed = console.file.getvalue()
    assert "width 0.05 needs 1533 samples, and the data has 200; raise data.samples.n" in printed
    assert "attacks:\n  fgsm:\n    samples: {n: 60, selection: stratified}" in printed
    assert [(p.name, p.samples) for p in answer.plan] == [("attacks.fgsm", 60)]
    raw["attacks"]["fgsm"]["samples"] = {"n": 60, "selection": "stratified"}
    validate(raw)
