"""Units of disjoint windows are bounded together: the bounds of each are what it has alone."""

from __future__ import annotations

import pytest
import torch
from exact import inputs_of_activations
from torch import Tensor, nn

from windtunnel.assessments.verification.branch_and_bound import intermediate
from windtunnel.assessments.verification.branch_and_bound.activations import Kink
from windtunnel.assessments.verification.branch_and_bound.grouped_crown import bound_together, groups_of, rows_of
from windtunnel.assessments.verification.branch_and_bound.intermediate import (
    bound_apart,
    bound_network,
    improve_network,
    influential,
)
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, LinearSpecs
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")
SHAPE = (2, 16, 16)
EPSILON = {Norm.LINF: 0.05, Norm.L2: 0.8, Norm.L1: 3.0}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, 2, 1), nn.Conv2d(3, 3, 3, 1, 1)
        self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(3 * 16, 4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first((x - 0.3) / 0.7).relu()
        x = (x + self.norm(self.second(x))).relu()
        return self.last(nn.functional.avg_pool2d(x, 2).flatten(1))


NETS = {
    "strides": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)
    ),
    "max pooling": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.1), nn.Flatten(),
        nn.Linear(144, 4),
    ),
    "residual": Residual,
    "smooth": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, 2), nn.Sigmoid(), nn.Conv2d(3, 4, 2), nn.GELU(), nn.Flatten(), nn.Linear(144, 4)
    ),
}  # fmt: skip


def network(name: str) -> Network:
    torch.manual_seed(0)
    return Network(NETS[name]().eval(), SHAPE, CPU)


def region(norm: Norm) -> BallRegions:
    return BallRegions.around(
        torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1)), norm, EPSILON[norm], CPU
    )


def nothing_known(bounded: Bounded, j: int) -> Tensor:
    shape = 2, len(bounded.region), bounded.network.layers[j].size
    return torch.full(shape, -torch.inf, dtype=torch.float64)


@pytest.mark.parametrize("norm", EPSILON)
@pytest.mark.parametrize("name", NETS)
def test_each_unit_has_the_bound_that_it_has_alone_or_is_stable_by_intervals(name, norm):
    net = network(name)
    bounded, grouped = Bounded(net, region(norm), 16, 0), 0
    for j, layer in enumerate(net.layers):
        groups, every = groups_of(net, j, 16), torch.ones(2, 2, layer.size, dtype=torch.bool)
        alone, together = nothing_known(bounded, j), nothing_known(bounded, j)
        bound_apart(bounded, j, alone, every, 0)
        if groups:
            grouped += 1
            bound_together(bounded, j, groups, together, every, 0)
            left = (together[0] < 0) & (together[1] < 0) if isinstance(layer.activation, Kink) else every[0]
            assert left.any()
            for a, b in zip(alone, together, strict=True):
                assert (b[left] >= a[left] - 1e-9).all()  # the better of it and the interval's
                close = torch.isclose(a, b, rtol=0, atol=1e-9)
                assert close[left].float().mean() > 0.5
        bounded.add(alone[0], -alone[1])
    assert grouped >= 2


@pytest.mark.parametrize("name", NETS)
def test_groups_make_up_a_layer_and_nothing_outside_its_window_moves_a_unit(name):
    net = network(name)
    for j, layer in enumerate(net.layers):
        groups = groups_of(net, j, 16)
        if not groups:
            continue
        assert sorted(torch.cat([g.units.flatten() for g in groups]).tolist()) == list(range(layer.size))
        for group in groups:
            assert (group.owners()[0].sum(1) <= 1).all()
            x = torch.rand(1, *SHAPE, dtype=torch.float64)
            moved = torch.rand(1, *SHAPE, dtype=torch.float64)
            for member in range(group.units.shape[1]):
                own = group.owners()[0][:, member].view(SHAPE).bool()
                before, after = (inputs_of(net, j, image) for image in (x, torch.where(own, x, moved)))
                at = group.units[:, member]
                assert torch.allclose(before[at], after[at], rtol=0, atol=1e-12)


def inputs_of(net: Network, j: int, x: Tensor) -> Tensor:
    return inputs_of_activations(net, x)[0].split(net.sizes)[j]


def margins(net: Network) -> tuple[Bounded, LinearSpecs]:
    bounded = bound_network(net, region(Norm.LINF), 64)
    spec = torch.eye(4)[0] - torch.eye(4)[1:]
    return bounded, bounded.start(len(net.layers), spec.repeat(2, 1), torch.arange(2).repeat_interleave(3))


@pytest.mark.parametrize("name", ["strides", "max pooling", "residual"])
def test_as_many_functions_as_asked_for_hold_more_influence_than_those_of_the_most_influential_units(name):
    """A pass carries all units of a function back, whichever of them were chosen."""
    net = network(name)
    bounded, rows = margins(net)
    row_of = [rows_of(net, j, 16) for j in range(len(net.layers))]

    def functions(chosen: list[Tensor]) -> int:
        """Of the first sample."""
        at = [
            {(side, int(row[unit])) for side, unit in w[:, 0].nonzero().tolist()}
            for w, row in zip(chosen, row_of, strict=True)
        ]
        return sum(map(len, at))

    by_unit, _ = influential(bounded, rows, 60)
    most = functions(by_unit)
    whole, share = influential(bounded, rows, most, together=True)
    every, _ = influential(bounded, rows, 10**6)
    assert functions(whole) == most
    assert not any(bool((a & ~b).any()) for a, b in zip(whole, every, strict=True))
    for chosen, known, row in zip(whole, every, row_of, strict=True):  # all units of a function or none
        for side, unit in chosen[:, 0].nonzero().tolist():
            beside = row == row[unit]
            assert torch.equal(chosen[side, 0, beside], known[side, 0, beside])
    assert sum(int(w[:, 0].sum()) for w in whole) > 60
    assert float(share[0]) > float(influential(bounded, rows, 60)[1][0])


@pytest.mark.parametrize("name", ["strides", "max pooling", "residual"])
def test_influence_is_the_same_with_units_carried_together(name, monkeypatch):
    net = network(name)
    bounded, rows = margins(net)
    together = influential(bounded, rows, 60)[0]
    monkeypatch.setattr(intermediate, "rows_of", lambda network, j, rows: torch.arange(network.layers[j].size))
    alone = influential(bounded, rows, 60)[0]
    assert sum(int(w.sum()) for w in together) == 120
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("norm", EPSILON)
@pytest.mark.parametrize("name", NETS)
def test_better_slopes_raise_the_bounds_of_a_whole_layer_and_no_point_lies_outside(name, norm):
    net = network(name)
    balls = region(norm)
    bounded = bound_network(net, balls, 64)
    before = [(up - low).sum() for low, up in zip(bounded.low, bounded.up, strict=True)]
    every = [torch.ones(2, 2, layer.size, dtype=torch.bool) for layer in net.layers]
    improve_network(bounded, every, 10, lambda: False)
    after = [(up - low).sum() for low, up in zip(bounded.low, bounded.up, strict=True)]
    assert all(b <= a for a, b in zip(before, after, strict=True))
    if name != "smooth":  # whose slopes are fixed
        assert any(b < 0.999 * a for a, b in zip(before[1:], after[1:], strict=True))
    sample = torch.arange(2).repeat_interleave(500)
    points = balls.points(torch.rand(1000, 512, dtype=torch.float64) * 2 - 0.5, sample)
    values = inputs_of_activations(net, points.view(-1, *SHAPE)).split(net.sizes, 1)
    for low, up, value in zip(bounded.low, bounded.up, values, strict=True):
        assert (value >= low[sample]).all()
        assert (value <= up[sample]).all()


@pytest.mark.parametrize("before", [nn.LeakyReLU(-0.6), nn.Sigmoid(), nn.GELU()])
def test_the_box_of_what_an_activation_gives_holds_it(before):
    """The ends of its inputs do not bound the outputs of one that is not monotonic."""
    for seed in range(3):
        torch.manual_seed(seed)
        first = nn.Linear(16, 6).requires_grad_(False)
        first.weight.mul_(2.5)
        module = nn.Sequential(nn.Flatten(), first, before, nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
        net = Network(module.requires_grad_(False), (1, 4, 4), CPU)
        region = BallRegions.around(torch.rand(1, 1, 4, 4), Norm.LINF, 0.3, CPU)
        middle, radius = bound_network(net, region, 64).box(1, torch.zeros(1, dtype=torch.int64))
        points = region.low + (region.high - region.low) * torch.rand(4000, 16, dtype=torch.float64)
        given = before(points @ first.weight.double().T + first.bias.double())
        assert ((given - middle).abs() <= radius + 1e-9).all()
