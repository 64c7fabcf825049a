"""The checks against the gallery, at a reduced size; WINDTUNNEL_GALLERY=full runs all of it (benchmarks/liars.py prints it)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.gallery.case import EVERYWHERE, evaluate
from benchmarks.gallery.honest import models
from benchmarks.gallery.liars import liars
from benchmarks.liars import BUDGETS, honest

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("WINDTUNNEL_GALLERY") == "full"
ROOT = Path(__file__).parents[3]


def test_at_least_nine_of_ten_liars_are_caught_by_the_default_profile() -> None:
    cases = list(liars(40))
    assert len(cases) >= 25
    chosen = cases if WHOLE else cases[::3]
    missed = [case.name for case in chosen if not evaluate(case)[0].caught]
    assert len(missed) <= 0.1 * len(chosen), missed


def test_a_model_whose_gradient_points_the_wrong_way_does_not_pass_the_gate() -> None:
    (found,) = evaluate(next(iter(liars(60))))
    assert (found.case, found.robust > 0.9) == ("wrong-sign gradient", True)
    assert found.hard


def test_no_honest_model_fails_a_hard_check_and_at_most_one_warns() -> None:
    count, budgets = (len(models()), BUDGETS) if WHOLE else (1, BUDGETS[1:2])
    profiles = ("stored", "standard", "full") if WHOLE else ("standard",)
    for entry, epsilon, found in honest(profiles, count, budgets, 20):
        assert not found.hard, (found.case, epsilon, entry, found.profile, found.hard)
        assert len(set(found.warn) - EVERYWHERE) <= 1, (found.case, epsilon, entry, found.profile, found.warn)


@pytest.mark.parametrize(
    ("table", "sentence"), [("liars", r"Caught: (\d+) of (\d+)"), ("honest", r"Combinations: (\d+)")]
)
def test_the_readme_says_what_the_tables_say(table: str, sentence: str) -> None:
    found = re.search(sentence, (ROOT / "docs" / f"gallery-{table}.md").read_text())
    assert found
    assert " of ".join(found.groups()) in (ROOT / "README.md").read_text()
