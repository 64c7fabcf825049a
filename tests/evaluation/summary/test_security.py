"""Security curves: analytic distances of a linear classifier, and one set of axes for attacks and certificates."""

from dataclasses import replace

import pytest
import torch

from windtunnel.assessments.attacks.assess import assess as attack
from windtunnel.assessments.figures.base import NothingToDraw
from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.assessments.verification.assess import assess as verify
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import l2
from windtunnel.evaluation.summary.security import read_curves, security_curves, write_curves
from windtunnel.evaluation.summary.security_figure import SecurityCurvesVisualiser
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.artifacts import write_artifacts

BUDGET = Budget(epsilon=0.1)


@pytest.fixture(scope="module")
def assessed(linear_subject, tmp_path_factory):
    """Artifacts of a sweep, a minimum-norm attack, an attack at one budget and two verifications of a linear model."""
    few, folder = linear_subject.subset(torch.arange(40)), tmp_path_factory.mktemp("reports")
    found = {
        "curve": sweep("curve", SweepEntry(epsilons=[0, 0.03, 0.1]), BUDGET, few),
        "deepfool": attack(
            "deepfool",
            AttackEntry(library="foolbox", algorithm="L2DeepFoolAttack", budget={"norm": "L2", "epsilon": 0.5}),
            BUDGET,
            few,
        ),
        "fgsm": attack("fgsm", AttackEntry(library="torchattacks", algorithm="FGSM"), BUDGET, few),
        "crown": verify("crown", VerificationEntry(library="auto-LiRPA", algorithm="crown"), BUDGET, few),
        "radii": verify(
            "radii",
            VerificationEntry(library="auto-LiRPA", algorithm="crown", radius={"max": 0.2, "tolerance": 0.002}),
            BUDGET,
            few,
        ),
    }
    return few, {name: write_artifacts(result, folder / name, few, started=0) for name, result in found.items()}


def test_curves_and_points_of_a_run(assessed):
    _, artifacts = assessed
    curves = {c.name: c for c in security_curves(list(artifacts.values()))}
    assert {name: (c.certified, len(c.epsilons) > 1, c.norm) for name, c in curves.items()} == {
        "curve": (False, True, Norm.LINF),
        "deepfool": (False, True, Norm.L2),
        "fgsm": (False, False, Norm.LINF),
        "crown": (True, False, Norm.LINF),
        "radii": (True, True, Norm.LINF),
    }
    for curve in curves.values():
        assert all(low <= value <= high for low, value, high in zip(curve.low, curve.accuracy, curve.high, strict=True))
        assert curve.accuracy == sorted(curve.accuracy, reverse=True)


def test_a_minimum_norm_attack_is_the_whole_curve_and_starts_at_clean_accuracy(assessed):
    few, artifacts = assessed
    (curve,) = security_curves([artifacts["deepfool"]])
    distances = l2(artifacts["deepfool"].tensor("perturbed_inputs"), few.dataset.inputs)
    assert curve.epsilons[0] == 0
    assert curve.accuracy[0] == float(few.clean_correct.double().mean())
    for epsilon, accuracy in zip(curve.epsilons, curve.accuracy, strict=True):
        assert accuracy == pytest.approx(float((few.clean_correct & (distances > epsilon + 1e-6)).double().mean()))


def test_nothing_verified_lies_above_anything_attacked_and_on_a_linear_model_they_meet(assessed):
    # FGSM reaches the exact radius of a two-class linear model; of ten classes it can miss a nearer class, never overshoot.
    _, artifacts = assessed
    verified, left = (security_curves([artifacts[name]])[0] for name in ("radii", "curve"))
    for epsilon, accuracy in zip(left.epsilons, left.accuracy, strict=True):
        below = [a for e, a in zip(verified.epsilons, verified.accuracy, strict=True) if e >= epsilon]
        assert below[0] <= accuracy + 1e-9


def test_all_of_them_are_written_and_drawn_with_a_panel_per_norm(assessed, tmp_path):
    _, artifacts = assessed
    summary, curves = replace(artifacts["curve"], directory=tmp_path), security_curves([*artifacts.values()])
    write_curves(curves, tmp_path)
    assert list(read_curves(tmp_path)) == curves
    linf, l2 = SecurityCurvesVisualiser().draw(summary)
    assert linf.alt.startswith("Accuracy against epsilon under Linf")
    assert l2.alt.startswith("Accuracy against epsilon under L2")
    write_curves([], tmp_path)
    with pytest.raises(NothingToDraw):
        SecurityCurvesVisualiser().draw(summary)
