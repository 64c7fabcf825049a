"""Coefficients over classifiers, on planted rows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import pearsonr
from torch import nn

from windtunnel.assessments.latent.correlate import PAIRS, correlations, few_classifiers
from windtunnel.assessments.latent.tables import ClassifierMetrics
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.operations.tracking.state import _by_name


def classifier(**metrics):
    return ClassifierMetrics.of("a model", metrics)


@example([(0, 0), (2, 2), (3, 3), (1, 1)])  # Spearman's is 1 less a rounding, and 1 of them twice
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=4, max_size=12, unique=True))
def test_a_coefficient_lies_in_its_interval_and_more_classifiers_make_it_narrower(points):
    rows = [classifier(clean_accuracy=x / 50, lga=y / 50) for x, y in points]
    (line,) = correlations(rows)
    (more,) = correlations(rows * 2)
    for one, both in ((line.of_pearson, more.of_pearson), (line.of_spearman, more.of_spearman)):
        if one and one.limits:
            assert -1 <= one.low <= one.value <= one.high <= 1
            assert both.high - both.low <= one.high - one.low + 1e-9


def test_the_interval_of_pearsons_coefficient_is_that_of_scipy():
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(9, generator=generator).double() for _ in range(2))
    (line,) = correlations(
        [classifier(clean_accuracy=float(a), lra=float(a + b)) for a, b in zip(x, noise, strict=True)]
    )
    expected = pearsonr(x.numpy(), (x + noise).numpy()).confidence_interval()
    assert [line.pearson_ci_low, line.pearson_ci_high] == pytest.approx(list(expected))


def test_the_pairs_are_those_of_the_paper_each_once():
    assert len(set(PAIRS)) == len(PAIRS) == 2 + 3 * 9 + 4 * 4 + 2 + 4
    wanted = {
        ("clean_accuracy", "lga"), ("clean_accuracy", "lra"), ("adversarial_frequency_linf", "laga"),
        ("noise_accuracy", "adversarial_severity_linf"), ("image_change_l1_generation", "lags"),
    }  # fmt: skip
    assert wanted <= set(PAIRS)


def test_two_to_four_classifiers_are_a_caveat_and_three_have_no_interval():
    rows = [classifier(clean_accuracy=0.1 * i, lga=0.2 * i + 0.01 * i**2) for i in range(5)]
    (line,) = correlations(rows[:3])
    assert line.pearson is not None
    assert line.pearson_ci_low is None
    assert correlations(rows[:2]) == []
    assert [bool(few_classifiers(rows[:n])) for n in (1, 2, 4, 5)] == [False, True, True, False]


def test_mlflow_gets_every_classifier_and_every_coefficient_by_name():
    rows = [{"model": "this run", "lga": 0.5}, {"model": "runs/noise", "lga": 0.6}]
    lines = [{"x": "clean_accuracy", "y": "lga", "n": 5, "pearson": 0.4}]
    assert _by_name({"models": rows, "correlations": lines})["correlations"]["clean_accuracy"]["lga"]["pearson"] == 0.4
    assert _by_name({"models": rows})["models"]["runs/noise"]["lga"] == 0.6
    assert _by_name({"lga": 0.5}) == {}


def test_codes_are_drawn_with_the_decay_of_the_generators():
    model = nn.Linear(4, 4)
    model.latent_dim, model.decode = 4, lambda latents, classes: latents
    whole = FittedGenerator(model, 10, (0, 1), (0, 1), "digest", "test")
    drawn = [replace(whole, decay=decay).draw(5000, torch.Generator().manual_seed(0)) for decay in (1.0, 0.5)]
    assert torch.equal(drawn[0] * 0.5, drawn[1])
    assert float(drawn[1].std()) == pytest.approx(0.5, rel=0.02)
