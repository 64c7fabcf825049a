"""Bounds of inner units are improved where the margins hang on them, and nowhere else."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.intermediate import (
    bound_network,
    improve_network,
    influential,
)
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, LinearSpecs
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")
EVERY = 10**6


def bounded_margins(seed: int = 0) -> tuple[Bounded, LinearSpecs]:
    """Two samples of an MLP of three hidden layers, with the margins of class 0."""
    torch.manual_seed(seed)
    sizes = [20, 40, 40, 40, 3]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())][:-1]
    net = Network(nn.Sequential(*layers), (20,), CPU)
    bounded = bound_network(net, BallRegions.around(torch.rand(2, 20), Norm.LINF, 0.3, CPU), 64)
    spec = torch.eye(3)[0] - torch.eye(3)[1:]
    rows = bounded.start(len(net.layers), spec.repeat(2, 1), torch.arange(2).repeat_interleave(2))
    return bounded, optimise(bounded, rows, 20, torch.inf)[1]


def test_the_number_asked_for_is_kept_for_every_sample_and_only_unstable_units_above_the_first_layer_count():
    bounded, rows = bounded_margins()
    (few, share), (every, whole) = (influential(bounded, rows, most) for most in (30, EVERY))
    assert sum(w.sum((0, 2)) for w in few).tolist() == [30, 30]
    assert whole.tolist() == pytest.approx([1, 1])
    assert all(
        30 / int(of_sample) < float(part) < 1
        for part, of_sample in zip(share, sum(w.sum((0, 2)) for w in every), strict=True)
    )
    assert not any(w.any() for w in (few[0], every[0]))  # its bounds are exact
    for low, up, a, b in zip(bounded.low, bounded.up, few, every, strict=True):
        assert not (a & ~b).any()
        assert not (b & ~((low < 0) & (up > 0))).any()


def test_a_sample_without_margins_has_no_influential_bounds():
    bounded, rows = bounded_margins()
    alone, share = influential(bounded, rows.at(rows.sample == 1), 30)
    assert share[0] == 1 > share[1]
    assert not any(w[:, 0].any() for w in alone)
    assert any(w[:, 1].any() for w in alone)


def test_layers_of_which_no_margin_depends_directly_count_through_the_deeper_ones():
    bounded, rows = bounded_margins()
    every = influential(bounded, rows, EVERY)[0]
    direct = (bounded.backward(rows, bounded.relaxation(rows, torch.float32), torch.float32).coefficients < 0).any(0)
    at = bounded.slices[1]
    assert every[1].any(0).any(0)[bounded.units[1]].sum() > direct[at].sum()


def test_a_quarter_of_the_bounds_gains_far_more_than_a_quarter_of_what_all_of_them_do():
    def gained(most: int) -> float:
        bounded, rows = bounded_margins(1)
        before = bounded.value(rows)
        improve_network(bounded, influential(bounded, rows, most)[0], 20, lambda: False)
        fresh = bounded.start(rows.start, rows.spec, rows.sample)
        return float((bounded.value(optimise(bounded, fresh, 20, torch.inf)[1]) - before).sum())

    bounded, rows = bounded_margins(1)
    everything = max(sum(w.sum((0, 2)) for w in influential(bounded, rows, EVERY)[0]).tolist())
    assert gained(everything // 4) > 0.4 * gained(EVERY) > 0


def test_time_that_is_over_leaves_bounds_as_they_are():
    bounded, rows = bounded_margins()
    before = [low.clone() for low in bounded.low]
    improve_network(bounded, influential(bounded, rows, EVERY)[0], 20, lambda: True)
    assert all(torch.equal(a, b) for a, b in zip(before, bounded.low, strict=True))
