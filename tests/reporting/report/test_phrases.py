"""Every number says over what it was taken, in the units that it has."""

from pathlib import Path

import pytest
import torch

from tests.made import metadata
from tests.reporting.report.conftest import metrics_of
from windtunnel.assessments.corruptions.assess import _upsampled
from windtunnel.assessments.figures.scene import Label, Line
from windtunnel.assessments.verification.figures import CertifiedCurveVisualiser
from windtunnel.core.transformations import epsilon_text
from windtunnel.evaluation.summary.sandwich_figure import ROLES, BudgetBar, sandwich
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.model import Recipe
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.phrases import region_words
from windtunnel.reporting.report.sections.front import _worst_corruption


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.06, "0.06"), (0.1, "0.1"), (8 / 255, "8/255"), (0.03137254901960784, "8/255"), (1.5 / 255, "1.5/255"), (0.2, "0.2"), (0, "0"),
     (0.031373, "0.03137"), (1 / 3, "0.3333"), (3.0, "3")],
)  # fmt: skip
def test_an_epsilon_is_written_as_people_write_it(value, text):
    assert epsilon_text(value) == text


def suite(severities, accuracies):
    pairs = [[name, s] for name in accuracies for s in severities]
    metrics = {"clean_accuracy": 0.96, "worst_corruption": "fog", "worst_corruption_accuracy": 0.217,
               "accuracy_by_pair": [a for row in accuracies.values() for a in row]}  # fmt: skip
    kwargs = {"sample_names": [str(i) for i in range(100)], "severities": severities, "corruptions": pairs}
    perturbation = {"corruption_name": "common", "severity": max(severities)}
    semantics = {"perturbation": perturbation}
    facts = metadata("statistical_sampling", metrics=metrics, kwargs=kwargs, semantics=semantics)
    return Artifacts("everyday", Path(), {}, facts)


def test_a_mean_over_severities_is_never_called_the_accuracy_at_the_largest():
    found = suite([1, 3, 5], {"fog": [0.31, 0.17, 0.17], "contrast": [0.51, 0.18, 0.1]})
    assert region_words(found) == "common, mean of severities 1, 3, 5"
    words = _worst_corruption(found)
    assert "from 96.0% to 21.7% (mean of severities 1, 3, 5), on 100 samples" in words
    assert "lowest is contrast at severity 5 with 10.0%" in words
    assert region_words(suite([3], {"fog": [0.2]})) == "common at severity 3"


def test_a_difference_of_shares_is_in_points():
    (caveat,) = _upsampled(CorruptionEntry(algorithm="common", upsample=32), {"resizing_change": -0.03})
    assert "-3.0 points" in caveat.text
    assert "%" not in caveat.text


def test_a_bar_of_the_sandwich_says_its_share_and_not_half_a_point_less():
    scene = sandwich([BudgetBar("Linf ≤ 0.06", dict(zip(ROLES, (0.785, 0.07, 0.0, 0.115, 0.03), strict=True)))])
    texts = [mark.text for mark in scene.marks if isinstance(mark, Label)]
    assert "78.5%" in texts
    assert "78%" not in texts


def test_a_recipe_lists_what_it_read_and_nothing_of_another_one():
    assert not {"noise_sigma", "epsilon", "steps"} & Recipe().used().keys()
    assert Recipe(recipe="noise").used().keys() >= {"noise_sigma"}
    assert Recipe(recipe="adversarial").used().keys() >= {"epsilon", "steps", "epochs"}


def test_a_curve_that_ran_out_of_time_is_no_finding():
    grid = {"curve_epsilons": [0.0, 0.1], "certified_curve": [0.5, 0.0], "certified_curve_ci_low": [0.4, 0.0],
            "certified_curve_ci_high": [0.6, 0.1], "average_certified_radius": 0.05}  # fmt: skip

    def drawn(late, **more):
        data = {"verdicts": torch.zeros(8), "timed_out": torch.arange(8) < late, **more}
        facts = metadata("formal_verification", metrics=grid, kwargs={"sample_names": ["a"] * 8})
        (scene,) = CertifiedCurveVisualiser().draw(Artifacts("v", Path(), data, facts))
        curve = next(m for m in scene.marks if isinstance(m, Line) and m.colour in {"certified", "unknown"})
        return curve, " ".join(m.text for m in scene.marks if isinstance(m, Label))

    curve, words = drawn(8)
    assert curve.dashed
    assert curve.colour == "unknown"
    assert "8 of 8 samples out of time" in words
    curve, words = drawn(2, radius_unfinished=torch.arange(8) > 4)
    assert curve.dashed
    assert "5 of 8 samples out of time" in words
    curve, words = drawn(0)
    assert not curve.dashed
    assert "out of time" not in words


def test_every_curve_of_a_chart_has_a_colour_of_its_own():
    from windtunnel.assessments.figures.scene import ATTACK_CURVES, CERTIFICATE_CURVES, PALETTE
    from windtunnel.evaluation.summary.security_figure import _ENDS

    ends = [role for _, _, role in _ENDS]
    for theme in (0, 1):
        colours = [PALETTE[role][theme] for role in (*ATTACK_CURVES, *CERTIFICATE_CURVES, *ends)]
        assert len(set(colours)) == len(colours)


def test_the_clean_accuracy_of_the_verdict_is_that_of_metadata(reports):
    metrics = metrics_of(reports / "summary")
    clean, low, high = (f"{metrics[f'clean_accuracy{end}']:.1%}" for end in ("", "_ci_low", "_ci_high"))
    assert f"Clean accuracy is {clean} [{low}, {high}] on 20 samples" in build_report(reports).front.statement


def test_caveats_that_differ_in_a_number_are_one_row_and_others_stay_whole():
    from windtunnel.reporting.report.sections.assessment import limits_table

    def with_caveat(name, *texts):
        caveats = [{"code": code, "text": text} for code, text in texts]
        return Artifacts(name, Path(), {}, metadata(name=name, caveats=caveats))

    few = "Sanity check F2: its interval is {} points. Assess more samples."
    mine = [
        with_caveat("pgd", ("F2", few.format("±6.5")), ("draws", "PGD draws at random.")),
        with_caveat("cw", ("F2", few.format("±6.7")), ("draws", "Square draws from a stream of its own.")),
        with_caveat("fgsm", ("F2", few.format("±6.5"))),
    ]
    (table,) = limits_table(mine)
    assert table.rows == (
        ("pgd, fgsm, cw", "Sanity check F2: its interval is ±6.5 (pgd, fgsm), ±6.7 (cw) points. Assess more samples."),
        ("pgd", "PGD draws at random."),
        ("cw", "Square draws from a stream of its own."),
    )
    assert limits_table([with_caveat("pgd")]) == []
