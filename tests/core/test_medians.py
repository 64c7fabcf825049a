"""There is one median: the mean of the two middle values, and none where a middle value is censored."""

import ast
from pathlib import Path

import pytest
import torch

from windtunnel.core.statistics import median, median_metric

SOURCE = Path(__file__).parents[2] / "src" / "windtunnel"
INF = float("inf")


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([0.1266, 0.1398], 0.1332),
        ([3, 1, 2], 2),
        ([1, 2, 3, INF], 2.5),
        ([1, 2, INF, INF], None),
        ([1, INF, INF], None),
        ([INF], None),
        ([], None),
    ],
)
def test_the_median_is_the_mean_of_the_two_middle_values(values, middle):
    assert median(values) == (middle if middle is None else pytest.approx(middle))


def test_a_censored_median_says_that_it_was_not_reached():
    assert median_metric("m", [1.0, INF]) == {"m_status": "not reached"}
    assert median_metric("m", torch.tensor([1.0, 2.0]).tolist()) == {"m": 1.5}
    assert median_metric("m", []) == {}


def test_nobody_calls_the_median_of_a_tensor_which_is_the_lower_middle_value():
    def calls(tree):
        for node in ast.walk(tree):
            if getattr(getattr(node, "func", None), "attr", "") in {"median", "nanmedian", "kthvalue"}:
                yield getattr(node.func.value, "id", "") not in {"np", "statistics"}

    bad = [str(path) for path in SOURCE.rglob("*.py") if any(calls(ast.parse(path.read_text())))]
    assert bad == []
