"""One assessment in two runs: what is paired, what is refused, and what the statistics say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import write_run

from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import binomial_interval
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.metadata import parse_metadata
from windtunnel.reporting.compare.comparison import compare_assessment, compare_curves, mcnemar_exact


def artifacts(root, verdicts, **options):
    return read_artifacts(write_run(root, verdicts, **options) / "reports" / "robustness" / "pgd")


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (0, 10, 2 / 1024), (1, 3, 10 / 16)]
)
def test_mcnemar_is_the_binomial_tail_on_the_flips(gained, lost, p):
    assert mcnemar_exact(gained, lost) == pytest.approx(p)


def test_flips_are_found_and_a_misclassified_sample_never_holds(tmp_path):
    first, second = artifacts(tmp_path / "a", [2, 1, 2, 2]), artifacts(tmp_path / "b", [1, 2, 1, 2], steps=40)
    (pair,) = compare_assessment("pgd", first, second)
    assert (pair.gained, pair.lost) == ((1,), (0, 2))
    assert pair.rates == (0.5, 0.25)
    assert pair.table.difference == pytest.approx(pair.rates[1] - pair.rates[0])
    assert pair.interval[0] <= pair.table.difference <= pair.interval[1]
    assert pair.settings == ("call_kwargs.steps",)


@pytest.mark.parametrize("kind", AssessmentKind)
def test_a_rate_has_the_interval_that_the_assessment_itself_states(tmp_path, kind):
    made = artifacts(tmp_path / "a", [2, 2, 2, 1])
    made = replace(made, metadata=made.metadata.model_copy(update={"assessment_kind": kind}))
    (pair,) = compare_assessment("pgd", made, made)
    exact = kind is AssessmentKind.FORMAL_VERIFICATION
    assert pair.limits == (binomial_interval(3, 4, method="clopper_pearson" if exact else "wilson"),) * 2


def test_exchanging_the_runs_turns_the_signs(tmp_path):
    first, second = artifacts(tmp_path / "a", [2, 1, 2, 2, 2]), artifacts(tmp_path / "b", [1, 1, 2, 1, 2])
    (there,), (back,) = compare_assessment("pgd", first, second), compare_assessment("pgd", second, first)
    assert (there.gained, there.lost, there.p_value) == (back.lost, back.gained, back.p_value)
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"names": ["s0", "x1"]}, "other samples .2 and 2, 1 of them in both"),
        ({"names": ["s1", "s0"]}, "in another order"),
        ({"shift": 0.5}, "the same names and other values"),
        ({"targets": [1, 0]}, "other reference labels"),
    ],
)
def test_other_samples_are_not_paired(tmp_path, other, reason):
    with pytest.raises(UserError, match=reason):
        compare_assessment("pgd", artifacts(tmp_path / "a", [2, 2]), artifacts(tmp_path / "b", [2, 2], **other))


def predictions_of(critical, epsilons):
    """(E, N): right (0) below each sample's critical epsilon, wrong (1) from there on."""
    return [[int(e >= c) for c in critical] for e in epsilons]


def test_the_curve_of_equal_runs_differs_by_nothing(tmp_path):
    sweep = ([0.0, 0.1, 0.2], predictions_of([0.1, 0.2, 9, 9], [0, 0.1, 0.2]))
    first, second = (artifacts(tmp_path / name, [2] * 4, sweep=sweep) for name in "ab")
    curve = compare_curves(first, second)
    assert [p.first for p in curve.points] == [1.0, 0.75, 0.5]
    assert all((p.first, p.low, p.high) == (p.second, 0, 0) for p in (*curve.points, curve.overall))


def test_the_area_is_the_trapezoid_rule_and_its_interval_has_the_width_of_the_paired_t(tmp_path):
    rng, n = np.random.default_rng(1), 400
    epsilons = np.linspace(0, 0.4, 9)
    one = rng.uniform(0.05, 0.5, n)
    two = one + rng.normal(0.01, 0.05, n)
    first, second = (
        artifacts(tmp_path / name, [2] * n, sweep=(epsilons.tolist(), predictions_of(critical, epsilons)))
        for name, critical in (("a", one), ("b", two))
    )
    overall = compare_curves(first, second).overall
    for value, critical in ((overall.first, one), (overall.second, two)):
        accuracy = [(critical > e).mean() for e in epsilons]
        assert value == pytest.approx(np.trapezoid(accuracy, epsilons) / 0.4)
    scores = [np.trapezoid([1.0 * (critical > e) for e in epsilons], epsilons, axis=0) / 0.4 for critical in (one, two)]
    difference = scores[1] - scores[0]
    half = 1.96 * difference.std(ddof=1) / np.sqrt(n)
    assert (overall.high - overall.low) / 2 == pytest.approx(half, rel=0.1)
    assert overall.low < overall.second - overall.first < overall.high


def test_curves_over_other_epsilons_are_not_compared(tmp_path):
    def sweep(epsilons):
        return epsilons, predictions_of([0.1, 9], epsilons)

    first = artifacts(tmp_path / "a", [2, 2], sweep=sweep([0.0, 0.1]))
    second = artifacts(tmp_path / "b", [2, 2], sweep=sweep([0.0, 0.2]))
    assert compare_curves(first, second) is None
    assert compare_assessment("pgd", first, second)[0].curve is None


def with_options(made, **options):
    """Artifacts with further options in their metadata."""
    return replace(
        made,
        metadata=parse_metadata(
            {
                **made.metadata.model_dump(mode="json"),
                "kwargs": {**made.metadata.kwargs.model_dump(mode="json"), **options},
            },
            "made",
        ),
    )


def test_a_suite_is_compared_by_severity(tmp_path):
    def suite(root, wrong):
        made = artifacts(root, [2, 2, 2])
        made.data["corruption_predictions"] = torch.tensor(wrong)
        pairs = [["fog", 1], ["fog", 3], ["snow", 1], ["snow", 3]]
        return with_options(made, corruptions=pairs)

    first = suite(tmp_path / "a", [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]])
    second = suite(tmp_path / "b", [[0, 0, 0], [0, 1, 1], [0, 0, 1], [0, 1, 1]])
    curve = compare_curves(first, second)
    assert [(p.at, p.first, p.second) for p in curve.points] == [
        ("1", pytest.approx(5 / 6), pytest.approx(5 / 6)),
        ("3", pytest.approx(4 / 6), pytest.approx(2 / 6)),
    ]
    assert curve.overall.second - curve.overall.first == pytest.approx(-1 / 6)
    assert curve.points[0].low == curve.points[0].high == 0
    assert curve.points[1].low < 0
    assert compare_assessment("common", first, second)[0].name == "common (every corruption)"


def test_a_black_box_attack_is_compared_by_the_queries_it_spent(tmp_path):
    def attacked(root, verdicts, queries):
        made = artifacts(root, verdicts)
        made.data["queries"] = torch.tensor(queries)
        return with_options(made, max_queries=50)

    first = attacked(tmp_path / "a", [1, 1, 2, 2], [2, 20, 50, 50])
    second = attacked(tmp_path / "b", [1, 2, 2, 2], [50, 50, 50, 50])
    curve = compare_curves(first, second)
    assert [(p.at, p.first, p.second) for p in curve.points] == [
        ("1", 0.75, 0.75), ("2", 0.5, 0.75), ("5", 0.5, 0.75), ("10", 0.5, 0.75), ("20", 0.25, 0.75), ("50", 0.25, 0.5),
    ]  # fmt: skip
    assert curve.overall.at == "mean of the rows above"
