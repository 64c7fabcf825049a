"""The public records that C21 compares with: each counts by its lowest evaluation."""

import pytest

from windtunnel.evaluation.sanity.comparisons import best_known


@pytest.mark.parametrize(
    ("benchmark", "model", "accuracy", "epsilon"),
    [
        ("cifar10", "Bartoldson2024Adversarial_WRN-94-16", 0.7371, 8 / 255),
        ("cifar100", "Wang2023Better_WRN-70-16", 0.4266, 8 / 255),
        ("imagenet", "Xu2024MIMIR_Swin-L", 0.5968, 4 / 255),
    ],
)
def test_an_adaptive_evaluation_counts_where_it_is_lower(benchmark, model, accuracy, epsilon):
    assert best_known(benchmark)[:2] == (model, accuracy)
    assert best_known(benchmark)[2] == pytest.approx(epsilon)
    assert best_known(benchmark)[3]
