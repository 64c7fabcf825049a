"""The spread over the classes from planted outcomes: every number is known beforehand."""

import pytest
import torch
from statsmodels.stats.proportion import proportion_confint

from windtunnel.evaluation.summary.classes import class_metrics

TARGETS = torch.tensor([0] * 10 + [1] * 5 + [2] * 2)
HELD = torch.tensor([True] * 8 + [False] * 2 + [True] * 2 + [False] * 3 + [True] * 2)
NAMES = ("cat", "dog", "eel", "fox")  # no sample is a fox


@pytest.mark.parametrize(("method", "theirs"), [("wilson", "wilson"), ("clopper_pearson", "beta")])
def test_each_class_has_its_rate_and_the_gap_is_between_the_extremes(method, theirs):
    found = class_metrics("worst_case", HELD, TARGETS, NAMES, method)
    rows = found["worst_case_per_class"]
    assert [(row["class"], row["n"], row.get("accuracy")) for row in rows] == [
        ("cat", 10, 0.8), ("dog", 5, 0.4), ("eel", 2, 1.0), ("fox", 0, None),
    ]  # fmt: skip
    low, high = proportion_confint(2, 5, method=theirs)
    assert (rows[1]["accuracy_ci_low"], rows[1]["accuracy_ci_high"]) == pytest.approx((low, high))
    assert found["worst_case_weakest_class_accuracy"] == 0.4
    assert found["worst_case_weakest_class_accuracy_ci_low"] == pytest.approx(low)
    assert found["worst_case_class_gap"] == pytest.approx(0.6)


def test_one_class_alone_has_no_gap():
    assert [*class_metrics("certified", HELD[:10], TARGETS[:10], NAMES)] == ["certified_per_class"]
