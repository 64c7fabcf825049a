"""Tables among the metrics: what is written is read as the same, in the bytes of earlier versions."""

import json

import pytest

from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import binomial_rate
from windtunnel.records.files import plain_json
from windtunnel.records.metadata import limits, number
from windtunnel.records.tables import ClassShare, ConfidenceBins, Share, table, written

CLASSES = [
    {"class": "a", "n": 2, "accuracy": 0.5, "accuracy_ci_low": 0.1, "accuracy_ci_high": 0.9},
    {"class": "b", "n": 0},
]
TABLES = {
    ClassShare: CLASSES,
    Share: [{"n": 3, "accuracy": 1.0, "accuracy_ci_low": 0.4, "accuracy_ci_high": 1.0}, {"n": 0}],
    ClassifierMetrics: [{"model": "this run", "lga": 0.5, "lars_not_found": 3}],
    Correlation: [{"x": "lga", "y": "lra", "n": 3, "pearson": 0.4, "spearman": 0.5}, {"x": "lga", "y": "lara", "n": 3}],
    ConfidenceBins: [{"confidence": [0.0, 0.7], "accuracy": [0.0, 0.5], "count": [0, 4]}],
}


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_a_table_is_written_as_it_was_read(kind):
    lines = table(tuple[kind, ...], {"t": TABLES[kind]}, "t")
    assert json.dumps(written(lines)) == json.dumps(TABLES[kind])


def test_a_class_without_samples_has_no_rate_and_one_with_samples_its_interval():
    full, empty = (ClassShare.of(binomial_rate(k, n), **{"class": word}) for word, k, n in (("a", 1, 2), ("b", 0, 0)))
    assert full.rate.value == 0.5
    assert full.rate.low < 0.5 < full.rate.high
    assert empty.rate is None
    assert empty.model_dump() == {"class": "b", "n": 0}


def test_a_table_that_is_not_there_is_empty_and_one_that_does_not_fit_is_refused_in_one_line():
    assert table(tuple[ClassShare, ...], {}, "per_class") == ()
    with pytest.raises(UserError, match=r"^per_class: not .*0.class: field required") as refused:
        table(tuple[ClassShare, ...], {"per_class": [{"n": 3}]}, "per_class")
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="lga"):
        table(tuple[ClassifierMetrics, ...], {"models": [{"model": "m", "lga": "high"}]}, "models")


def test_numbers_that_are_not_finite_are_read_as_they_were_written():
    metrics = plain_json({"size": float("inf"), "size_ci_low": 0.5, "size_ci_high": float("inf"), "word": "high"})
    assert number(metrics, "size") == float("inf")
    assert limits(metrics, "size") == (0.5, float("inf"))
    assert limits(metrics, "word") is None
    with pytest.raises(TypeError, match="word"):
        number(metrics, "word")
