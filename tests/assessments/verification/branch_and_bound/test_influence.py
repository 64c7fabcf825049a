"""Bounds of inner units are improved where the margins hang on them, and nowhere else."""

from __future__ import annotations

import torch
from exact import network

from windtunnel.assessments.verification.branch_and_bound.influence import influential
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")


def bounded_margins(seed: int = 0) -> tuple[Bounded, Rows]:
    net = Network(network("dense", seed), (1, 4, 4), CPU)
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    bounded = bound_network(net, Region.around(x, Norm.LINF, 0.3, CPU), 64)
    spec = torch.eye(net.num_outputs)[0] - torch.eye(net.num_outputs)[1:]
    rows = bounded.start(len(net.layers), spec.repeat(2, 1), torch.arange(2).repeat_interleave(len(spec)))
    return bounded, optimise(bounded, rows, 20, torch.inf)[1]


def test_a_larger_share_names_more_units_and_only_unstable_ones_that_cost_something():
    bounded, rows = bounded_margins()
    few, many, every = (influential(bounded, rows, share) for share in (0.3, 0.8, 1.0))
    assert sum(int(w.sum()) for w in few) < sum(int(w.sum()) for w in every)
    for j, (a, b, c) in enumerate(zip(few, many, every, strict=True)):
        assert not (a & ~b).any()
        assert not (b & ~c).any()
        assert not (c & ~((bounded.low[j] < 0) & (bounded.up[j] > 0))).any()


def test_a_sample_whose_rows_cost_nothing_has_no_influential_units():
    bounded, rows = bounded_margins()
    alone = influential(bounded, rows.at(rows.sample == 1), 0.8)
    assert not any(w[0].any() for w in alone)
    assert any(w[1].any() for w in alone)


def test_better_bounds_of_the_influential_units_gain_most_of_what_those_of_all_units_do():
    def gained(share: float) -> float:
        bounded, rows = bounded_margins(1)
        before = bounded.value(rows)
        which = influential(bounded, rows, share)
        improve_network(bounded, which, 20, 64, lambda: False)
        fresh = bounded.start(rows.start, rows.spec, rows.sample)
        return float((bounded.value(optimise(bounded, fresh, 20, torch.inf)[1]) - before).sum())

    assert gained(0.8) > 0.5 * gained(1.0) > 0


def test_time_that_is_over_leaves_bounds_as_they_are():
    bounded, rows = bounded_margins()
    before = [low.clone() for low in bounded.low]
    improve_network(bounded, influential(bounded, rows, 1.0), 20, 64, lambda: True)
    assert all(torch.equal(a, b) for a, b in zip(before, bounded.low, strict=True))
