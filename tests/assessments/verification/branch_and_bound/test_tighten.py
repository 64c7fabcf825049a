"""Small searches that tighten the bounds of inner units: they hold at every point, and never by what float32 says."""

import pytest
import torch
from exact import improved, inputs_of_activations, network
from torch import nn

from windtunnel.assessments.verification.branch_and_bound import intermediate
from windtunnel.assessments.verification.branch_and_bound import session as deciding
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, tighten
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.branch_and_bound.session import decide
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")
KINDS = ["dense", "max pooling", "residual"]


def taken_apart(kind, seed, epsilon=0.3):
    net = Network(network(kind, seed), (1, 4, 4), CPU)
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return net, BallRegions.around(x, Norm.LINF, epsilon, CPU)


def tightened(net, region, splits, memory=10**9):
    bounded = improved(net, region, 10)
    every = [torch.ones(2, 1, layer.size, dtype=torch.bool) for layer in net.layers]
    bounded.memory = memory
    tighten(bounded, every, splits, lambda: False)
    return bounded


def inputs_at_points(net, region):
    points = region.low + (region.high - region.low) * torch.rand(4000, 16, dtype=torch.float64).round(decimals=1)
    return inputs_of_activations(net, points.view(-1, 1, 4, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_more_splits_are_never_worse_and_often_better(kind):
    better = 0
    for seed in range(3):
        net, region = taken_apart(kind, seed)
        few, many = (tightened(net, region, splits) for splits in (0, 8))
        met = inputs_at_points(net, region)
        for bounded in (few, many):
            assert (met >= torch.cat(bounded.low, 1)).all()
            assert (met <= torch.cat(bounded.up, 1)).all()
        gain = torch.cat(many.low, 1) - torch.cat(few.low, 1)
        # One that is shown to be positive needs no more.
        assert (gain[torch.cat(few.low, 1) < 0] >= -1e-4).all()
        better += int((gain > 1e-3).sum())
    assert better


@pytest.mark.parametrize("claimed", [0.5, torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_float32_claims_does_not_count(kind, claimed, monkeypatch):
    def boastful(*given):
        bounds, rows = optimise(*given)
        return torch.where(torch.rand(bounds.shape) < 0.5, bounds, bounds + claimed), rows

    optimise = intermediate.optimise
    monkeypatch.setattr(intermediate, "optimise", boastful)
    for seed in range(3):
        net, region = taken_apart(kind, seed)
        bounded, met = tightened(net, region, 6), inputs_at_points(net, region)
        assert (met >= torch.cat(bounded.low, 1)).all()
        assert (met <= torch.cat(bounded.up, 1)).all()


def test_many_splits_in_little_memory_are_of_fewer_units_at_a_time_and_give_the_same_bounds(monkeypatch):
    sizes, best_first = [], intermediate._best_first
    monkeypatch.setattr(intermediate, "_best_first", lambda *given: sizes.append(len(given[1])) or best_first(*given))
    net, region = taken_apart("dense", 0)
    much = tightened(net, region, 8)
    largest = max(sizes)
    sizes.clear()
    little = tightened(net, region, 8, memory=9 * 9 * much.below(1) * 3)
    assert max(sizes) == 3 < largest
    for ample, scarce in ((much.low, little.low), (much.up, little.up)):
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ample, scarce, strict=True))


@pytest.mark.parametrize(
    ("shallow", "minimum_gain", "domains", "splits"),
    [(0, -1, 600, [4, 8]), (0, 2, 600, [4]), (0, -1, 3000, [4, 8, 16]), (3, -1, 600, [4]), (3, -1, 3000, [4, 8])],
)
def test_rounds_follow_while_bounds_gain_and_the_search_may_be_long(
    shallow, minimum_gain, domains, splits, monkeypatch
):
    """A search of 100 subdomains precedes the first round, of 500 in a shallow network; each later one is five times as long."""
    rounds = []
    monkeypatch.setattr(deciding, "_SHALLOW", shallow)
    monkeypatch.setattr(deciding, "_MIN_GAIN", minimum_gain)
    monkeypatch.setattr(deciding, "tighten", lambda *given, **more: (rounds.append(given[2]), tighten(*given, **more)))
    monkeypatch.setattr(deciding._MarginBounds, "_search", lambda *_: None)
    torch.manual_seed(0)
    sizes = [1, 3, 3, 3]
    inner = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in zip(sizes, sizes[1:], strict=False)]
    net = Network(nn.Sequential(*inner, nn.Flatten(), nn.Linear(3 * 16, 3)), (1, 4, 4), CPU)
    x = torch.full((1, 1, 4, 4), 0.5)
    target = net.logits(x).argmin(1)  # this class holds nowhere, so nothing is ever verified
    never = lambda points, sample: torch.zeros(len(points), dtype=torch.bool)  # noqa: E731
    region = BallRegions.around(x, Norm.LINF, 0.3, CPU)
    decide(net, region, target, torch.zeros(1), never, Limits(domains, 3, 16, 2**30, 64), lambda: False)
    assert rounds == splits


def test_later_layers_are_bounded_again_once_earlier_ones_are_tighter():
    """Only bounds of the first two layers are tightened: the third layer's follow from them."""
    torch.manual_seed(1)
    sizes = [5, 12, 12, 12]
    inner = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:], strict=False)]
    net = Network(nn.Sequential(*inner, nn.Linear(12, 3)), (5,), CPU)
    bounded = bound_network(net, BallRegions.around(torch.rand(1, 5), Norm.LINF, 0.4, CPU), 64)
    which = [torch.full((2, 1, 12), j < 2) for j in range(3)]
    before = (bounded.up[2] - bounded.low[2]).clone()
    tighten(bounded, which, 8, lambda: False)
    assert (bounded.up[2] - bounded.low[2]).sum() < before.sum() - 1e-3
