"""Page one in one sentence: a golden sentence for each case, none of which contradicts its numbers."""

from pathlib import Path

import pytest
import torch

from tests.made import metadata
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.sections.statement import statement

NO_LABELS = ({"code": "pseudo_labels", "text": "There are no labels."},)


def summary(clean=0.97, n=200, failures=(), caveats=(), others=(), **row):
    """A summary at Linf 0.06 whose layer holds `row`; `others` are further layers."""
    first = {"norm": "Linf", "epsilon": 0.06, "n": n, "n_attacked": n, "n_examined": n, **row}
    metrics = {"clean_accuracy": clean, "n_samples": n, "sandwich": [first, *others]}
    facts = metadata(name="summary", metrics=metrics, kwargs={"hard_failures": list(failures)}, caveats=list(caveats))
    return Artifacts("summary", Path(), {"targets": torch.zeros(n)}, facts)


def interval(key, low, high):
    return {f"{key}_ci_low": low, f"{key}_ci_high": high}


L2 = {"norm": "L2", "epsilon": 0.5, "n": 200, "n_attacked": 200, "n_examined": 200, "worst_case_accuracy": 0.4}
TIGHT = {**L2, "norm": "Linf", "epsilon": 8 / 255, "worst_case_accuracy": 0.8, "certified_accuracy": 0.75}
CLEAN = "Clean accuracy is 97.0% on 200 samples."
CASES = {
    "closed": (
        summary(certified_accuracy=0.66, worst_case_accuracy=0.66, **interval("worst_case_accuracy", 0.592, 0.722)),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is 66.0% [59.2%, 72.2%]: every sample is verified, broken or misclassified.",
    ),
    "open": (
        summary(certified_accuracy=0.41, worst_case_accuracy=0.66),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is between 41.0% (verified) and 66.0% (survived every attack); 25.0% of the "
        "samples are undecided.",
    ),
    "only attacked": (
        summary(worst_case_accuracy=0.66),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is at most 66.0% (survived every attack). Nothing was verified, so it may be as "
        "low as 0%.",
    ),
    "only verified": (
        summary(certified_accuracy=0.66),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is at least 66.0% (verified). No attack ran at this budget, so the other samples "
        "are undecided.",
    ),
    "contradiction": (
        summary(certified_accuracy=0.7, worst_case_accuracy=0.66, failures=["sample 7 is verified by liar and broken by pgd at Linf"]),
        "The evaluation contradicts itself: one sample is both verified and broken. Until this is resolved, its numbers "
        "are not valid.",
    ),
    "hard check": (
        summary(worst_case_accuracy=0.66, failures=["sanity check B1 failed", "sanity check B4 failed"]),
        "The evaluation fails 2 hard checks. Until this is resolved, its numbers are not valid.",
    ),
    "no labels": (
        summary(clean=1.0, worst_case_accuracy=0.66, certified_accuracy=0.41, caveats=NO_LABELS),
        "There are no labels, so the model's clean predictions on 200 samples serve as labels. At Linf ≤ 0.06 the share of "
        "unchanged predictions is between 41.0% (verified) and 66.0% (survived every attack); 25.0% of the samples are undecided.",
    ),
    "one sample": (
        summary(clean=1.0, n=1, worst_case_accuracy=0.0),
        "Only one sample was assessed, so there are no shares to report: its clean input is classified correctly, and an "
        "attack breaks it at Linf ≤ 0.06.",
    ),
    "all broken": (
        summary(worst_case_accuracy=0.0, certified_accuracy=0.0, **interval("worst_case_accuracy", 0.0, 0.019)),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is 0.0% [0.0%, 1.9%]: every sample is misclassified or has a known adversarial "
        "example.",
    ),
    "nothing ran": (None, "Nothing was assessed, so nothing is known about this model."),
    "only clean": (
        summary(),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is unknown: nothing was attacked or verified.",
    ),
    "several budgets": (
        summary(certified_accuracy=0.66, worst_case_accuracy=0.66, others=[TIGHT, L2]),
        f"{CLEAN} At Linf ≤ 0.06 robust accuracy is 66.0%: every sample is verified, broken or misclassified. At other budgets: "
        "75.0% to 80.0% at Linf ≤ 8/255; at most 40.0% at L2 ≤ 0.5.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_follows_from_the_case(case):
    found, words = CASES[case]
    assert statement(found).replace("\N{NO-BREAK SPACE}", " ") == words


@pytest.mark.parametrize("case", CASES)
def test_no_sentence_calls_a_model_robust_or_hedges_what_is_proved(case):
    words = statement(CASES[case][0])
    assert "is robust" not in words
    assert ("unknown" in words) <= (case == "only clean")


@pytest.mark.parametrize(
    ("clean", "row", "words"),
    [
        (0.0, {}, "misclassified on the clean input"),
        (1.0, {}, "nothing was attacked or verified"),
        (1.0, {"certified_accuracy": 1.0, "worst_case_accuracy": 1.0}, "it is verified"),
        (1.0, {"worst_case_accuracy": 1.0}, "which is no proof"),
    ],
)
def test_one_sample_has_no_shares(clean, row, words):
    text = statement(summary(clean=clean, n=1, **row))
    assert words in text
    assert "%" not in text
