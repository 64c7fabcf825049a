"""Certified radii against analytic ones, and the curves that are drawn of them."""

import pytest
import torch
from balls import analytic_radius, budget, entry, first
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.assessments.figures.base import draw_figures
from windtunnel.assessments.verification.assess import assess, verification_metrics
from windtunnel.assessments.verification.cascade import steps
from windtunnel.assessments.verification.cascade.radius import (
    RadiusBounds,
    accuracy_curve,
    broken_radius,
    certified_radius,
    empirical_curve,
    raise_radius,
)
from windtunnel.assessments.verification.figures import CertifiedCurveVisualiser
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.records.artifacts import write_artifacts


@pytest.mark.parametrize("method", ["crown", "branch-and-bound"])
@pytest.mark.parametrize(("norm", "suffix"), [(Norm.LINF, ""), (Norm.L2, "-l2"), (Norm.L1, "-l1")])
def test_the_certified_radius_of_a_linear_model_is_the_analytic_one(free_linear, norm, suffix, method):
    subject, exact = first(free_linear, 12), analytic_radius(free_linear, norm)[:12]
    largest = 0.4
    given_entry = entry(method + suffix, radius={"max": largest, "tolerance": 0.001})
    found = assess("v", given_entry, budget(0.1, norm), subject).data["certified_radius"]
    assert (found <= exact + 1e-5).all()
    assert (found >= exact.clamp(max=largest) - 0.0015).all()
    assert ((found == largest) == (exact > largest)).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=8), st.floats(0.001, 0.2))
def test_bisection_finds_any_threshold_to_within_its_tolerance(thresholds, tolerance):
    exact = torch.tensor(thresholds)
    low = torch.zeros(len(exact))
    found = certified_radius(lambda rows, epsilons: epsilons <= exact[rows], low, 1.0, tolerance)
    assert (found <= exact.clamp(max=1.0) + 1e-6).all()
    assert (found >= exact.clamp(max=1.0) - tolerance - 1e-6).all()
    broken = broken_radius(lambda rows, epsilons: epsilons > exact[rows], low + 1.0, low, tolerance)
    assert (broken[exact >= 1.0] == torch.inf).all()
    assert (broken[exact < 1.0] > exact[exact < 1.0]).all()
    assert (broken[exact < 1.0] <= exact[exact < 1.0] + tolerance + 1e-6).all()


def test_misclassified_samples_have_radius_zero_on_both_sides_and_are_never_probed():
    def never(rows, epsilons):
        raise AssertionError("probed")

    low = torch.tensor([-1.0, -1.0])
    assert certified_radius(never, low, 1.0, 0.1).tolist() == [0, 0]
    assert broken_radius(never, low + 2, low, 0.1).tolist() == [0, 0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.5)), min_size=1, max_size=8), st.floats(0.001, 0.2))
def test_what_is_known_is_not_asked_about_and_changes_no_radius(samples, tolerance):
    exact, away = (torch.tensor(column) for column in zip(*samples, strict=True))
    distances, zero = torch.where(away < 0.25, exact + away + 1e-6, torch.inf), torch.zeros(len(exact))
    asked = []

    def holds(rows, epsilons):
        asked.extend(zip(rows.tolist(), epsilons.tolist(), strict=True))
        return epsilons <= exact[rows]

    alone = certified_radius(holds, zero, 1.0, tolerance)
    without, known = list(asked), RadiusBounds(zero.clone(), distances.clone())
    asked.clear()
    assert torch.equal(certified_radius(known.certified_by(holds), zero, 1.0, tolerance), alone)
    assert asked == [(row, epsilon) for row, epsilon in without if epsilon < distances[row]]
    assert torch.equal(known.holds, alone)
    asked.clear()
    assert torch.equal(certified_radius(known.certified_by(holds), zero, 1.0, tolerance), alone)
    assert all(epsilon > alone[row] for row, epsilon in asked)
    broken = broken_radius(known.broken_by(lambda rows, epsilons: ~holds(rows, epsilons)), zero + 1.0, alone, tolerance)
    assert (broken > exact).all()
    assert (broken[distances < 1] <= exact[distances < 1] + tolerance + 1e-6).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1), st.floats(0, 0.5)), min_size=1, max_size=8),
    st.floats(0.001, 0.2),
)
def test_a_search_upwards_finds_any_threshold_and_never_asks_far_beyond(samples, tolerance):
    exact, share, away = (torch.tensor(column) for column in zip(*samples, strict=True))
    holds, broken = (exact * share).clamp(max=1), torch.where(away < 0.25, exact + away + 1e-6, torch.inf)
    known, asked = RadiusBounds(holds.clone(), broken.clone()), []

    def verified(rows, epsilons):
        asked.extend(zip(rows.tolist(), epsilons.tolist(), strict=True))
        return epsilons <= exact[rows]

    raise_radius(verified, known, 1.0, tolerance)
    assert (known.holds <= exact).all()
    assert (known.holds >= exact.clamp(max=1) - tolerance - 1e-6).all()
    reach = (
        torch.minimum(2 * exact - holds, broken) + tolerance
    )  # a step is as long as all before it, and one tolerance
    assert all(holds[row] < epsilon <= reach[row] + 1e-6 for row, epsilon in asked)


def test_no_epsilon_beyond_a_counter_example_is_bounded(digits_subject, monkeypatch):
    asked, bound_all = [], steps.bound_all

    def watched(bounder, method, indices, epsilons, **more):
        asked.extend(zip(indices.tolist(), epsilons.tolist(), strict=True))
        return bound_all(bounder, method, indices, epsilons, **more)

    monkeypatch.setattr(steps, "bound_all", watched)
    given = entry("cascade", steps=["attack", "crown"], radius={"max": 0.3, "tolerance": 0.05, "attack": False})
    data = assess("c", given, budget(0.1), first(digits_subject, 10)).data
    distances = data["perturbation_distance"]
    assert distances.isfinite().any()
    assert asked
    assert not any(epsilon >= distances[row] for row, epsilon in asked)


def test_a_radius_is_between_what_is_proved_and_what_is_broken_at_the_budget(digits_subject):
    subject = first(digits_subject, 40)
    result = assess("c", entry("cascade", steps=["attack", "crown"], radius={"max": 0.3, "tolerance": 0.01}),
                    budget(0.1), subject)  # fmt: skip
    data = result.data
    certified, broken, verdicts = data["certified_radius"], data["broken_radius"], data["verdicts"]
    right = subject.clean_correct
    assert (certified[right] < broken[right]).all()
    assert (certified[verdicts == Verdict.VERIFIED] >= 0.1).all()
    assert (broken[verdicts == Verdict.FALSIFIED] <= 0.1 + 1e-6).all()
    assert (certified[~right] == 0).all()
    assert result.metrics == verification_metrics(data, result.kwargs["decided_by_names"], 0.3)
    curve, left = result.metrics["certified_curve"], result.metrics["empirical_curve"]
    assert curve[0] == left[0] == result.metrics["clean_accuracy"]
    assert all(low <= high for low, high in zip(curve, left, strict=True))
    assert curve == sorted(curve, reverse=True)


def test_the_curves_count_by_hand():
    radii, correct = torch.tensor([0.0, 0.1, 0.3, 0.3]), torch.tensor([True, True, True, False])
    assert accuracy_curve(radii, correct, torch.tensor([0.0, 0.1, 0.2, 0.4])).tolist() == [0.75, 0.5, 0.25, 0.0]
    broken = torch.tensor([0.0, 0.1, torch.inf])
    assert empirical_curve(broken, torch.tensor([0.0, 0.1, 0.2])).tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])


def test_a_time_budget_that_is_over_leaves_lower_radii_and_says_so(digits_subject):
    given_entry = entry("crown", time_budget=1e-6, radius={"max": 0.3, "tolerance": 0.01})
    result = assess("v", given_entry, budget(0.05), first(digits_subject, 10))
    assert result.data["certified_radius"].max() == 0
    assert {"time_out", "radius_cut_short"} <= {c.code for c in result.caveats}
    assert {"average_certified_radius", "median_certified_radius"}.isdisjoint(result.metrics)
    assert {"average_certified_radius_at_least", "median_certified_radius_at_least"} <= result.metrics.keys()
    assert result.data["radius_unfinished"].any()


def test_the_certified_curve_is_drawn_and_says_so_where_there_is_none(digits_subject, tmp_path):
    subject = first(digits_subject, 12)
    for name, radius in (("with", {"max": 0.2, "tolerance": 0.02}), ("without", None)):
        result = assess(name, entry("crown", radius=radius), budget(0.05), subject)
        artifacts = write_artifacts(result, tmp_path / name, subject, started=0.0)
        (picture,) = draw_figures(artifacts, [CertifiedCurveVisualiser()])
        assert picture.stat().st_size > 3000
