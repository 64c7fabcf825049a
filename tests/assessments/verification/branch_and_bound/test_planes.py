"""Planes in the place of chords: valid at every point, and never a weaker bound."""

import pytest
import torch
from exact import improved, inputs_of_activations, network

from windtunnel.assessments.verification.branch_and_bound.intermediate import tighten
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise, with_planes
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")
MOST = 5  # columns of a layer with planes, fewer than there are


def margins(kind, seed, epsilon=0.3, norm=Norm.LINF):
    """(network, what is known of it, its region, rows of the margins of class 0 with chords, the same with planes)."""
    net = Network(network(kind, seed), (1, 4, 4), CPU)
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    region = BallRegions.around(x, norm, epsilon, CPU)
    bounded = improved(net, region, 10)
    spec = torch.eye(net.num_outputs)[0] - torch.eye(net.num_outputs)[1:]
    rows = bounded.start(len(net.layers), spec, torch.zeros(len(spec), dtype=torch.int64))
    _, rows = optimise(bounded, rows, 30, torch.inf)
    # Too few steps to be left out for want of gain.
    return net, bounded, region, rows, with_planes(bounded, rows, 20, MOST)


@pytest.mark.parametrize("kind", ["dense", "convolution, batch norm"])
@pytest.mark.parametrize("norm", [Norm.LINF, Norm.L2])
def test_no_point_of_the_region_leaves_a_plane(kind, norm):
    met = 0
    for seed in range(3):
        net, bounded, region, _, rows = margins(kind, seed, norm=norm)
        points = region.low + (region.high - region.low) * torch.rand(400, 16, dtype=torch.float64).round(decimals=1)
        points = region.points(points, torch.zeros(400, dtype=torch.int64))
        leaves = [points]

        def relu(j, z, leaves=leaves, net=net):
            leaves.append(net.layers[j].activation(z).flatten(1))
            return leaves[-1].view(z.shape)

        net.run(points.view(-1, 1, 4, 4), relu)
        for j, plane in rows.planes.items():
            for q in range(len(rows)):
                above = points @ plane.weights[q].double().T + plane.offset[q]
                assert (leaves[j + 1][:, bounded.units[j][plane.columns[q]]] <= above + 1e-9).all()
                met += above.shape[1]
    assert met


@pytest.mark.parametrize("kind", ["dense", "convolution, batch norm"])
def test_planes_bound_no_worse_than_chords_and_often_better(kind):
    better = 0
    for seed in range(4):
        _, bounded, _, chords, planes = margins(kind, seed)
        gain = bounded.value(planes) - bounded.value(chords)
        assert (gain >= -1e-5).all()
        better += int((gain > 1e-3).sum())
    assert better > 0


def test_planes_that_need_too_much_memory_are_left_out():
    _, bounded, _, chords, _ = margins("dense", 0)
    bounded.memory = 100
    assert not with_planes(bounded, chords, 5, MOST).planes


@pytest.mark.parametrize("order", [[0, 0, 1, 1], [1, 0, 1, 1, 0], [1, 1], [1, 0], [0, 1, 0, 1]])
def test_a_function_has_its_planes_in_whatever_order_its_rows_come(order):
    _, bounded, _, _, rows = margins("dense", 0)
    assert rows.planes
    assert len(rows) == 2
    alone = torch.cat([bounded.value(rows.at(torch.tensor([i]))) for i in order])
    assert torch.allclose(bounded.value(rows.at(torch.tensor(order))), alone, atol=1e-12)


@pytest.mark.parametrize("splits", [0, 3])
def test_inner_bounds_are_tighter_with_planes_and_hold_at_every_point(splits):
    gained = 0
    for seed in range(3):
        net, plain, region, _, _ = margins("dense", seed)
        bent = plain.part(torch.zeros(1, dtype=torch.int64))
        every = [torch.ones(2, 1, layer.size, dtype=torch.bool) for layer in net.layers]
        for bounded, planes in ((plain, False), (bent, True)):
            tighten(bounded, every, splits, lambda: False, planes=planes)
        points = region.low + (region.high - region.low) * torch.rand(4000, 16, dtype=torch.float64).round(decimals=1)
        met = inputs_of_activations(net, points.view(-1, 1, 4, 4))
        assert (met >= torch.cat(bent.low, 1)).all()
        assert (met <= torch.cat(bent.up, 1)).all()
        narrower = [(a.up[j] - a.low[j]).sum() for a in (bent, plain) for j in range(1, len(net.layers))]
        gained += int(sum(narrower[: len(narrower) // 2]) < 0.999 * sum(narrower[len(narrower) // 2 :]))
    assert gained == 3 or splits
