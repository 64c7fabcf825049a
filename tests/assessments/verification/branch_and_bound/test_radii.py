"""Certified radii by branch and bound: exact on tiny networks, between bounds and attacks on others, and kept where limits end them."""

import os

import pytest
import torch
from balls import Arctangent, budget, entry, first, subject_with
from exact import NETWORKS, exact_margin, network
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound import session as search_session
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.cascade import search_step, task
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")
TOLERANCE, MAXIMUM = 0.002, 0.3
RADIUS = {"max": 0.3, "tolerance": 0.02}
# Random networks of each kind; WINDTUNNEL_NETWORKS=40 is the long form.
NUMBER = int(os.environ.get("WINDTUNNEL_NETWORKS", "1"))


def holds(module, x, target, epsilon):
    """Return True if no point of the ball reaches another class, by the margins of all activation patterns."""
    low, high = (x.double() - epsilon).clamp(0, 1), (x.double() + epsilon).clamp(0, 1)
    return exact_margin(module, low, high, target) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_radius_is_the_one_that_the_enumeration_of_all_activation_patterns_gives(kind):
    """It holds just below the certified radius and no longer just above it, so the exact radius lies between."""
    for seed in range(NUMBER):
        module = network(kind, seed)
        inputs = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        subject = subject_with(module, inputs, 3)
        found = assess(
            "v",
            entry("branch-and-bound", radius={"max": MAXIMUM, "tolerance": TOLERANCE, "attack": False}),
            budget(0.05),
            subject,
        ).data
        for x, label, certified in zip(
            inputs, subject.dataset.targets, found["certified_radius"].tolist(), strict=True
        ):
            below, above = certified - TOLERANCE / 8, certified + 2 * TOLERANCE
            assert below <= 0 or holds(module, x, int(label), below), (kind, seed)
            assert above >= MAXIMUM or not holds(module, x, int(label), above), (kind, seed)


def test_it_lies_between_what_bounds_prove_and_what_breaks_and_says_where_a_gap_is_left(mlp_subject):
    subject, steps, few = first(mlp_subject, 3), ["crown", "branch-and-bound"], {"domains": 40}
    by_bounds, searched = (
        assess("v", entry("cascade", steps=steps, params=few, radius={**RADIUS, **more}), budget(0.02), subject)
        for more in ({}, {"method": "branch-and-bound"})
    )
    low, found, broken = (
        by_bounds.data["certified_radius"],
        *(searched.data[f"{k}_radius"] for k in ("certified", "broken")),
    )
    right = subject.clean_correct
    assert (found >= low).all()
    assert (found > low)[right].any()
    assert (found < broken)[right].all()
    assert (found[~right] == 0).all()
    apart = broken - found > RADIUS["tolerance"]
    said = [sample for c in searched.caveats if c.code == "radius_open" for sample in c.samples]
    assert said == [name for name, open_ in zip(subject.dataset.ids, apart.tolist(), strict=True) if open_]


def test_what_its_limit_of_work_leaves_open_is_said_and_two_runs_agree(mlp_subject):
    subject = first(mlp_subject, 2)
    given = entry("branch-and-bound", params={"domains": 2}, radius={"max": 0.3, "tolerance": 0.1, "attack": False})
    one, two = (assess("v", given, budget(0.02), subject) for _ in range(2))
    assert torch.equal(one.data["certified_radius"], two.data["certified_radius"])
    assert "broken_radius" not in one.data
    (said,) = [c for c in one.caveats if c.code == "radius_open"]
    assert "2 subdomains" in said.text
    assert set(said.samples) <= set(subject.dataset.ids)
    assert "average_certified_radius" in one.metrics


def test_time_that_ends_keeps_the_radii_found_and_says_so(mlp_subject):
    subject = first(mlp_subject, 4)
    given = entry(
        "cascade", steps=["crown", "branch-and-bound"], timeout=1e-9, radius={**RADIUS, "method": "branch-and-bound"}
    )
    result = assess("v", given, budget(0.02), subject)
    certified, broken = result.data["certified_radius"], result.data["broken_radius"]
    assert (certified > 0).sum() == subject.clean_correct.sum()
    assert torch.equal(result.data["radius_unfinished"], subject.clean_correct & (broken - certified > 0.02))
    assert result.data["radius_unfinished"].any()
    assert "radius_cut_short" in [c.code for c in result.caveats]
    assert "average_certified_radius_at_least" in result.metrics


def test_a_search_that_memory_does_not_hold_gives_way_to_alpha_crown_and_says_so(mlp_subject, monkeypatch):
    def too_much(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 TB")

    monkeypatch.setattr(search_session, "decide", too_much)
    subject, steps = first(mlp_subject, 3), ["crown", "branch-and-bound"]
    found, by_bounds = (
        assess("v", entry("cascade", steps=steps, radius={**RADIUS, **more}), budget(1e-4), subject)
        for more in ({"method": "branch-and-bound"}, {})
    )
    assert (found.data["certified_radius"] >= by_bounds.data["certified_radius"]).all()
    assert (found.data["certified_radius"] > by_bounds.data["certified_radius"]).any()
    assert any("alpha-crown was used instead of branch-and-bound: out of memory" in c.text for c in found.caveats)
    assert "radius_unfinished" not in found.data


def test_a_group_whose_workers_are_lost_keeps_what_was_known_and_is_not_finished(mlp_subject, monkeypatch):
    subject, steps = first(mlp_subject, 3), ["crown", "branch-and-bound"]
    each_batch = task.each_batch

    def loses_the_first(batches, work, *, without, **more):
        yield batches[0], without(batches[0])
        yield from each_batch(batches[1:], work, without=without, **more)

    monkeypatch.setattr(task, "each_batch", loses_the_first)
    few = {"steps": steps, "params": {"domains": 5}}
    by_bounds = assess("v", entry("cascade", **few, radius=RADIUS), budget(0.02), subject).data["certified_radius"]
    given = entry("cascade", **few, radius={**RADIUS, "method": "branch-and-bound"})
    result = assess("v", given, budget(0.02), subject)
    lost = int(subject.clean_correct.nonzero()[0])
    assert result.data["radius_unfinished"].nonzero().flatten().tolist() == [lost]
    assert result.data["certified_radius"][lost] == by_bounds[lost]
    assert "average_certified_radius_at_least" in result.metrics
    (said,) = [c for c in result.caveats if c.code == "radius_cut_short"]
    assert said.samples == (subject.dataset.ids[lost],)


@pytest.mark.parametrize(("kind", "n", "step"), [("dense", 3, 0.02), ("max pooling", 5, TOLERANCE)])
def test_samples_that_are_searched_together_have_the_radii_that_they_have_alone(kind, n, step, monkeypatch):
    inputs = torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    subject = subject_with(network(kind, 0), inputs, 3)
    given, mixed = entry("branch-and-bound", radius={"max": 0.3, "tolerance": step, "attack": False}), []
    alone = assess("v", given, budget(0.05), subject).data["certified_radius"]
    decide = search_session.decide

    def watched(network, region, targets, goals, check, limits, expired, larger):
        mixed.append(0 < len(larger) < len(region))
        return decide(network, region, targets, goals, check, limits, expired, larger)

    monkeypatch.setattr(search_session, "decide", watched)
    monkeypatch.setattr(search_step, "groups", lambda indices, device: [Batch(0, indices, 0)])
    together = assess("v", given, budget(0.05), subject).data["certified_radius"]
    assert any(mixed)
    assert (together - alone).abs().max() <= TOLERANCE


def test_a_model_it_has_no_bounds_for_has_the_radii_of_alpha_crown():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), Arctangent(), nn.Linear(8, 3))
    subject = subject_with(module, torch.rand(2, 1, 4, 4), 3)
    result = assess("v", entry("branch-and-bound", radius=RADIUS), budget(0.001), subject)
    assert any("alpha-crown searched radii instead of branch-and-bound" in c.text for c in result.caveats)
    assert (result.data["certified_radius"] > 0).any()


def test_bounds_of_a_larger_ball_are_taken_over_where_they_are_tighter(mlp_subject):
    subject = first(mlp_subject, 2)
    net = Network(subject.classifier.module, subject.classifier.input_shape, CPU)
    alone, wide = (
        bound_network(net, BallRegions.around(subject.dataset.inputs, Norm.LINF, epsilon, CPU), 64)
        for epsilon in (0.03, 0.1)
    )
    tight = [(low.clone(), up - 0.25 * (up - low)) for low, up in zip(alone.low, alone.up, strict=True)]
    for known, better in ((list(zip(wide.low, wide.up, strict=True)), False), (tight, True)):
        found = bound_network(net, alone.region, 64, known)
        last = [torch.stack([b.low[-1], -b.up[-1]]) for b in (alone, found)]
        assert (last[1] >= last[0] - 1e-6).all()
        assert bool((last[1] > last[0] + 1e-3).any()) is better


def test_few_samples_are_tried_for_an_estimate_where_each_may_take_minutes():
    searched = {**RADIUS, "method": "branch-and-bound"}
    long = [entry("branch-and-bound-l2", radius=RADIUS), entry("cascade", radius=searched), entry("cascade", timeout=9)]
    short = [entry("branch-and-bound"), entry("cascade", radius=RADIUS), entry("crown", radius=RADIUS)]
    assert all(given.takes_minutes_a_sample for given in long)
    assert not any(given.takes_minutes_a_sample for given in short)


def test_a_ball_starts_from_what_holds_in_the_one_that_was_not_verified_last(mlp_subject, monkeypatch):
    asked, decide = [], search_session.decide

    def watched(network, region, targets, goals, check, limits, expired, larger):
        found = decide(network, region, targets, goals, check, limits, expired, larger)
        asked.append((float(region.radius), bool(found.verified[0]), larger, found.inner))
        return found

    monkeypatch.setattr(search_session, "decide", watched)
    right = int(mlp_subject.clean_correct.nonzero()[0])
    given = entry("cascade", steps=["branch-and-bound"], params={"domains": 3}, radius={**RADIUS, "attack": False})
    assess("v", given, budget(0.3), mlp_subject.subset(torch.tensor([right])))
    last, verified = None, []
    for epsilon, holds, larger, inner in asked[1:]:  # the first asks for the verdict
        assert (larger.get(0) is inner) is False
        assert larger.get(0) is (None if last is None else last[1][0])
        assert last is None or epsilon < last[0]
        last, verified = last if holds else (epsilon, inner), [*verified, holds]
    assert sum(verified) > 1
    assert not all(verified)
