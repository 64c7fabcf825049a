"""Which section shows which assessment, and what is known against epsilon."""

from pathlib import Path

import pytest
import torch

from tests.made import metadata
from tests.reporting.report.conftest import edit
from tests.reporting.report.test_report import blocks_of
from windtunnel.assessments.figures.base import NothingToDraw
from windtunnel.assessments.figures.scene import Dot, Line, Rect
from windtunnel.assessments.queries.figures import SuccessAgainstQueriesVisualiser
from windtunnel.assessments.verification.figures import CertifiedCurveVisualiser, VerdictSummaryVisualiser
from windtunnel.core.contracts import Norm
from windtunnel.evaluation.summary.security import SecurityCurve
from windtunnel.evaluation.summary.security_figure import _series
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.model import Chart, Table
from windtunnel.reporting.report.sections.families import reported, show


def artifacts(kind="empirical_attack", norm="Linf", tensors=None, family=None, **metrics):
    semantics = {"perturbation": {"norm": norm, "epsilon": 0.1}, "norm": norm}
    names = {"sample_names": ["a", "b", "c"]}
    return Artifacts(
        "it",
        Path("it"),
        tensors or {},
        metadata(kind, family=family, semantics=semantics, metrics=metrics, kwargs=names),
    )


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("What breaks it", artifacts(adversarial_accuracy=0.5)),
        ("What breaks it", artifacts(adversarial_accuracy=0.5, queries_total=100)),
        ("What breaks it", artifacts(accuracy_curve=[1.0])),
        ("How does it do along", artifacts(norm="latent_L2", family="latent", lara=0.5)),
        ("What is verified", artifacts("formal_verification", certified_accuracy=0.5)),
        ("How does it do under", artifacts("statistical_sampling", corrupted_accuracy=0.5)),
        (
            "What is verified",
            artifacts("formal_verification", family="of a plug-in that is gone", certified_accuracy=0.5),
        ),
    ],
)
def test_an_assessment_stands_with_the_question_that_it_answers(title, found):
    assert reported(found).question.words.startswith(title)


def table_of_classes(reports):
    tables = [
        b for b in blocks_of(build_report(reports), Table) if b.caption.startswith("Per class at the first budget")
    ]
    (section,) = {s.title for s in build_report(reports).sections if any(t in s.blocks for t in tables)} or {None}
    return section, *tables


def test_what_breaks_it_has_a_table_of_the_classes_the_weakest_first(reports):
    section, table = table_of_classes(reports)
    assert section.startswith("What breaks it")
    assert table.header == ("class", "samples", "worst case")  # nothing was verified
    rates = [float(row[2].split("%")[0]) for row in table.rows]
    assert rates == sorted(rates)
    assert all("[" in row[2] for row in table.rows)
    assert f"worst case: {rates[-1] - rates[0]:.1f} points" in table.caption
    assert sum(int(row[1]) for row in table.rows) == 20


def test_of_many_classes_the_table_has_the_weakest_and_names_that_recur_stay_apart(reports):
    def change(metadata):
        row = {"n": 4, "accuracy_ci_low": 0.1, "accuracy_ci_high": 0.9}
        rows = [{**row, "class": "same", "accuracy": i / 100} for i in reversed(range(50))]
        metadata["metrics"].update(
            worst_case_per_class=[*rows, {"class": "none", "n": 0}],
            worst_case_class_gap=0.49, worst_case_class_gap_ci_low=0.0, worst_case_class_gap_ci_high=0.9,
        )  # fmt: skip

    edit(reports / "summary" / "metadata.json", change)
    _, table = table_of_classes(reports)
    assert [row[2].split()[0] for row in table.rows] == [f"{i}.0%" for i in range(20)]
    assert "49.0 points [0.0, 90.0]; the gap may be chance. The 20 weakest of 50 classes." in table.caption


def test_the_bounds_of_a_verifier_are_a_table_of_classes(reports):
    edit(
        reports / "robustness" / "fgsm" / "metadata.json",
        lambda m: m["metrics"].update(n_bounded=7, mean_lower_bound=[-1.5, 0.25], mean_upper_bound=[2.0, 3.5]),
    )
    (table,) = [t for t in blocks_of(build_report(reports), Table) if "bounds of the logits" in t.caption]
    assert table.caption == "fgsm: mean verified bounds of the logits; 7 of 20 samples have bounds"
    assert table.rows == (("0", "-1.5", "2"), ("1", "0.25", "3.5"))


def test_a_mean_distance_is_no_percentage():
    found = artifacts(
        norm="latent_L2",
        family="latent",
        lars=0.73,
        lars_ci_low=0.67,
        lars_ci_high=0.79,
        lara=0.94,
        lara_ci_low=0.9,
        lara_ci_high=1.0,
    )
    shown = {column.metric: show(column, found) for column in reported(found).columns}
    assert shown["lars"] == "0.73"
    assert shown["lara"].startswith("94.0% [90.0%,")
    assert shown["lga"] == "-"


def test_a_sweep_is_a_line_against_epsilon_and_its_numbers_stand_in_its_table(reports):
    report = build_report(reports)
    chart = next(c for c in blocks_of(report, Chart) if c.caption == "Robust accuracy against epsilon, Linf")
    tips = [mark.tip for mark in chart.scene.marks if isinstance(mark, Dot)]
    assert any(tip.startswith("pair, attacked: ") and " at 0.05" in tip for tip in tips)
    tables = [t for t in blocks_of(report, Table) if t.header[0] == "assessment" and "robust accuracy" in t.header]
    assert [row[0] for row in tables[0].rows] == ["fgsm", "pair"]


def test_distances_per_sample_make_stairs_and_never_a_slope():
    left = {"accuracy": [1.0, 0.5, 0.0], "low": [0.9, 0.4, 0.0], "high": [1.0, 0.6, 0.1]}
    curve = SecurityCurve("cw", Norm.L2, False, [0.0, 0.1, 0.3], **left, samples=20, reach=0.3, steps=True)
    stairs = next(iter(_series(curve, 0, 20))).points
    assert all(x0 == x1 or y0 == y1 for (x0, y0), (x1, y1) in zip(stairs, stairs[1:], strict=False))
    assert stairs[0] == (0.0, 1.0)
    assert stairs[-1] == (0.3, 0.0)


def test_the_charts_of_verdicts_show_the_rates_and_the_run_times():
    seconds = {"runtime_per_sample": torch.tensor([0.01, 0.1, 10.0])}
    found = artifacts(
        "formal_verification",
        tensors=seconds,
        verified_rate=2 / 3,
        falsified_rate=1 / 3,
        unknown_rate=0.0,
        error_rate=0.0,
    )
    rates, times = VerdictSummaryVisualiser().draw(found)
    assert any(m.tip == "verified: 66.7%" for m in rates.marks if isinstance(m, Rect))
    assert sum(int(m.tip.split(": ")[1].split()[0]) for m in times.marks if isinstance(m, Rect) and m.tip) == 3


def test_a_certified_curve_and_the_success_against_queries_are_drawn():
    grid = [0.0, 0.1, 0.2]
    certified = artifacts("formal_verification", curve_epsilons=grid, certified_curve=[1.0, 0.5, 0.0],
                          certified_curve_ci_low=[0.9, 0.4, 0.0], certified_curve_ci_high=[1.0, 0.6, 0.1],
                          average_certified_radius=0.1)  # fmt: skip
    one = {"queries": torch.ones(1), "attacked": torch.ones(1, dtype=torch.bool)}
    counted = artifacts(tensors=one, count_fail=0, query_budgets=[1, 10, 50], success_rate_curve=[0.0, 0.5, 1.0],
                        success_rate_curve_ci_low=[0.0, 0.4, 0.9], success_rate_curve_ci_high=[0.1, 0.6, 1.0])  # fmt: skip
    for visualiser, found in ((CertifiedCurveVisualiser(), certified), (SuccessAgainstQueriesVisualiser(), counted)):
        (scene,) = visualiser.draw(found)
        assert any(isinstance(mark, Line) and len(mark.points) == 3 for mark in scene.marks)
        middle = [mark.tip for mark in scene.marks if isinstance(mark, Dot)][1]
        assert "50.0%" in middle
        assert "[40.0%, 60.0%]" in middle
        with pytest.raises(NothingToDraw):
            visualiser.draw(artifacts())
