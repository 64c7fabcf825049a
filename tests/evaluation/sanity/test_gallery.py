"""The checks against the gallery, at a reduced size; WINDTUNNEL_GALLERY=full runs all of it (benchmarks/liars.py prints it)."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.gallery.case import EVERYWHERE, Case, Caught, evaluate
from benchmarks.gallery.faulty import ALONE, MASKED, OWN, faulty
from benchmarks.gallery.honest import models
from benchmarks.gallery.honest_runs import honest_runs
from benchmarks.gallery.liars import liars
from benchmarks.gallery.truth import true_robust_accuracy
from benchmarks.liars import BUDGETS, OVERSTATED, honest

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("WINDTUNNEL_GALLERY") == "full"
QUICK = (
    "own attack that descends the loss",
    "own attack averaged over pixels, L2",
    "reseeds torch in its forward pass, Square alone",
    "certifies by 20 random points, no attacks",
    "a model without gradients under random noise",
    "each image again, shifted by a pixel",
)
ROOT = Path(__file__).parents[3]


def test_at_least_nine_of_ten_faulty_cases_are_caught_by_the_default_profile() -> None:
    cases = list(liars(40))
    assert len(cases) >= 80
    chosen = cases if WHOLE else cases[::8]
    missed = [case.name for case in chosen if not evaluate(case)[0].caught]
    assert len(missed) <= 0.1 * len(chosen), missed


@cache
def faulty_cases() -> dict[str, Case]:
    return {case.name: case for case in faulty(60)}


@cache
def evaluated(name: str) -> tuple[Caught, float | None]:
    """Return the row of a faulty case, and its robust accuracy less the true one; None where it has none."""
    (row,) = evaluate(faulty_cases()[name])
    return row, None if row.robust is None else row.robust - true_robust_accuracy(faulty_cases()[name])


def test_a_number_far_above_the_truth_fails_a_hard_check_off_the_beaten_path() -> None:
    """An attack of one's own, one attack alone, L2 and L1, no gradients, certificates alone: the witness checks every run."""
    assert len(OWN) + len(ALONE) + len(MASKED) >= 20
    assert set(QUICK) <= set(faulty_cases())
    for name in faulty_cases() if WHOLE else QUICK:
        row, overstated = evaluated(name)
        if overstated is not None and overstated > OVERSTATED:
            assert row.hard, (name, row.robust)
        else:
            assert row.caught, name


def test_what_seems_right_is_above_the_truth_in_the_cases_that_are_tried() -> None:
    """The test above would check nothing of cases that state the truth."""
    for name in QUICK[:3]:
        _, overstated = evaluated(name)
        assert overstated is not None
        assert overstated > OVERSTATED, name


def test_honest_runs_off_the_beaten_path_fail_no_hard_check() -> None:
    cases = list(honest_runs(60))
    assert len(cases) >= 15
    for case in cases if WHOLE else cases[1:17:3]:
        (row,) = evaluate(case)
        assert not row.hard, (case.name, row.hard)


def test_a_model_whose_gradient_points_the_wrong_way_does_not_pass_the_gate() -> None:
    (found,) = evaluate(next(iter(liars(60))))
    assert (found.case, found.robust > 0.9) == ("wrong-sign gradient", True)
    assert found.hard


def test_no_honest_model_fails_a_hard_check_and_at_most_one_warns() -> None:
    count, budgets = (len(models()), BUDGETS) if WHOLE else (1, BUDGETS[1:2])
    profiles = ("stored", "standard", "full") if WHOLE else ("standard",)
    rows = list(honest(profiles, count, budgets, 20))
    lowest: dict[tuple[str, float], float] = {}
    for _, epsilon, found in rows:
        lowest[found.case, epsilon] = min(found.robust, lowest.get((found.case, epsilon), 1.0))
    for entry, epsilon, found in rows:
        # One entry alone that leaves far more than another one broke states too much, and a hard check is right.
        if found.robust - lowest[found.case, epsilon] <= OVERSTATED:
            assert not found.hard, (found.case, epsilon, entry, found.profile, found.hard)
        else:
            assert set(found.hard) <= {"D15"}, (found.case, epsilon, entry, found.profile, found.hard)
        assert len(set(found.warn) - EVERYWHERE) <= 1, (found.case, epsilon, entry, found.profile, found.warn)


@pytest.mark.parametrize(
    ("table", "sentence"), [("liars", r"Caught: (\d+) of (\d+)"), ("honest", r"Combinations: (\d+)")]
)
def test_the_readme_says_what_the_tables_say(table: str, sentence: str) -> None:
    found = re.search(sentence, (ROOT / "docs" / "benchmarks" / f"{table}.md").read_text())
    assert found
    assert " of ".join(found.groups()) in (ROOT / "README.md").read_text()
