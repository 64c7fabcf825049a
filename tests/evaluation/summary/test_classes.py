"""The spread over the classes from planted outcomes: every number is known beforehand."""

import pytest
import torch
from statsmodels.stats.proportion import proportion_confint

from windtunnel.core.statistics import binomial_rate
from windtunnel.evaluation.summary.summarise import class_metrics, gap_interval

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
    assert found["worst_case_class_gap_ci_low"] == 0
    assert 0.6 < found["worst_case_class_gap_ci_high"] < 1


def test_one_class_alone_has_no_gap():
    assert [*class_metrics("certified", HELD[:10], TARGETS[:10], NAMES)] == ["certified_per_class"]


def test_the_interval_of_the_gap_is_that_of_the_ends_at_a_level_for_all_classes_at_once():
    low, high = gap_interval([binomial_rate(19, 20), binomial_rate(2, 20), binomial_rate(10, 20)])
    ends = [proportion_confint(k, 20, alpha=1 - 0.95 ** (1 / 3), method="beta") for k in (19, 2)]
    assert low == pytest.approx(ends[0][0] - ends[1][1])
    assert high == pytest.approx(ends[0][1] - ends[1][0])


def test_no_class_is_apart_from_itself():
    """The widest interval, of a class of one sample, has the highest upper end and the lowest lower end."""
    low, high = gap_interval([binomial_rate(1, 2), binomial_rate(500, 1000)])
    assert low == 0
    assert high < 0.55


@pytest.mark.parametrize("classes", [2, 30])
@pytest.mark.parametrize(("apart", "n"), [(0.0, 15), (0.0, 200), (0.4, 15), (0.4, 200)])
def test_the_interval_holds_the_true_gap_in_19_of_20_runs_though_the_extremes_are_chosen_afterwards(classes, apart, n):
    """Of classes that are all alike, too, whose observed extremes lie far apart by chance."""
    true = torch.full((classes,), 0.5 + apart / 2).index_fill(0, torch.tensor([0]), 0.5 - apart / 2)
    drawn = torch.binomial(torch.full((100, classes), float(n)), true, generator=torch.Generator().manual_seed(0))
    held = 0
    for run in drawn.int().tolist():
        low, high = gap_interval([binomial_rate(k, n) for k in run])
        held += low <= apart + 1e-6 and high >= apart - 1e-6
    assert held >= 95
