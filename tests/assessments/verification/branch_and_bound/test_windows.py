"""Max pooling over 2 x 2 is bounded from above as one maximum: its offset is the value of a game, and its lines hold with splits too."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.assessments.verification.branch_and_bound.windows import best_weights, value_of
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")


def games(count, generator):
    """Bounds of the differences of four numbers over some points."""
    points = torch.randn(count, 6, 4, generator=generator, dtype=torch.float64)
    return (points[:, :, :, None] - points[:, :, None, :]).amax(1)


def game_value(d, out):
    """By linear programming."""
    left = [i for i in range(4) if not out[i]]
    a = np.c_[d.numpy()[np.ix_(left, left)], -np.ones(len(left))]
    solved = linprog([0] * len(left) + [1], a, np.zeros(len(left)), [[1] * len(left) + [0]], [1],
                     bounds=[(0, 1)] * len(left) + [(None, None)])  # fmt: skip
    return solved.fun


def test_the_weights_are_those_of_the_game():
    generator = torch.Generator().manual_seed(0)
    d = games(200, generator)
    out = torch.rand(200, 4, generator=generator) < 0.3
    out[out.all(1)] = False
    weights, value = best_weights(d, out)
    torch.testing.assert_close(weights.sum(1), torch.ones(200, dtype=torch.float64))
    assert bool((weights >= 0).all())
    assert not bool(weights[out].any())
    torch.testing.assert_close(value_of(d, weights, out), value)
    best = torch.tensor([game_value(*case) for case in zip(d, out, strict=True)], dtype=torch.float64)
    assert bool((value >= best - 1e-9).all())
    assert float((value <= best + 1e-6).double().mean()) > 0.8
    assert float(value.sum()) < 1.01 * float(best.sum())


def test_of_two_numbers_it_is_the_chord():
    d = torch.zeros(1, 4, 4, dtype=torch.float64)
    d[0, 0, 1], d[0, 1, 0] = 3.0, 1.0
    weights, value = best_weights(d, torch.tensor([[False, False, True, True]]))
    torch.testing.assert_close(weights[0, :2], torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert float(value) == pytest.approx(0.75)


class LargestLessMean(nn.Module):
    """Of 2 x 2 pixels: nothing, and how far the largest is from the mean."""

    def forward(self, x):
        largest = nn.functional.max_pool2d(x, 2).flatten(1)
        return torch.cat([0 * largest, largest - x.flatten(1).mean(1, keepdim=True)], 1)


def largest_less_mean():
    """(the network over all that its pixels can be, its margin as a row)."""
    network = Network(LargestLessMean(), (1, 2, 2), CPU)
    bounded = bound_network(network, Region.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU), 64)
    spec = torch.tensor([[1.0, -1.0]])
    return bounded, bounded.start(len(network.layers), spec, torch.zeros(1, dtype=torch.int64))


def test_four_pixels_that_know_nothing_of_each_other_are_bounded_exactly():
    bounded, rows = largest_less_mean()
    assert float(bounded.value(rows)) == pytest.approx(
        -0.75, abs=1e-6
    )  # one pixel at 1, the others at 0; three chords say -1


NETS = {
    "a ReLU before": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "none before, one after": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 3)
    ),
    "rows that overlap, a column left over": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2, (1, 2)), nn.Flatten(), nn.Linear(3 * 6 * 3, 3)
    ),
    "columns that overlap": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2, (2, 1)), nn.Flatten(), nn.Linear(3 * 3 * 6, 3)
    ),
    "channels in the place of samples": lambda: nn.Sequential(
        nn.Flatten(1, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(25, 3)
    ),
    "adaptive": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Sigmoid(), nn.AdaptiveMaxPool2d(5), nn.Flatten(), nn.Linear(75, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("norm", [Norm.LINF, Norm.L2])
@pytest.mark.parametrize("name", NETS)
def test_no_point_lies_below_a_bound_with_splits_and_without(name, norm):
    torch.manual_seed(0)
    shape = (1, 9, 9) if "overlap" in name else (1, 10, 10)
    module = NETS[name]().eval().requires_grad_(False)
    network = Network(module, shape, CPU)
    assert network.has_windows == (name not in {"columns that overlap", "channels in the place of samples"})
    region = Region.around(torch.rand(2, *shape), norm, 0.1 if norm is Norm.LINF else 0.7, CPU)
    bounded = bound_network(network, region, 64)
    generator = torch.Generator().manual_seed(1)
    columns, m, end = bounded.below(len(network.layers)), 200, len(network.layers)
    sample = torch.arange(m) % 2
    noise = torch.rand(m, network.inputs, generator=generator, dtype=torch.float64)
    noise[::2] = noise[::2].round()  # corners too
    if norm is Norm.LINF:
        points = torch.lerp(region.low[sample], region.high[sample], noise)
    else:
        push = (noise - 0.5) / (noise - 0.5).norm(dim=1, keepdim=True)
        points = (region.centre[sample].flatten(1) + 0.7 * push).clamp(0, 1)
    met = network.inputs_of_activations(points.view(-1, *shape))
    starts = np.cumsum([0, *network.sizes])
    unit = torch.cat([starts[j] + units for j, units in enumerate(bounded.units)])
    low, up = torch.cat(bounded.low, 1)[sample], torch.cat(bounded.up, 1)[sample]
    assert bool((low <= met + 1e-9).all())
    assert bool((met <= up + 1e-9).all())
    spec = torch.randn(m, 3, generator=generator)
    value = (network.logits(points.view(-1, *shape)) * spec).sum(1)
    rows = bounded.start(end, spec, sample)
    for share in (0.0, 0.02, 0.2, 0.7):
        chosen = torch.rand(m, columns, generator=generator) < share
        signs = torch.where(chosen, met[:, unit].sign(), 0.0).to(torch.int8)
        alpha = torch.rand(m, columns, generator=generator)
        beta = torch.rand(m, columns, generator=generator) * chosen * 0.3
        for some in (rows, rows.with_multipliers(alpha, beta)):
            split = type(rows)(end, spec, sample, signs, some.alpha, some.beta)
            assert bool((bounded.value(split) <= value + 1e-9).all()), share


def test_a_subdomain_that_is_empty_has_a_bound_too():
    region = Region.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU)
    network = Network(nn.Sequential(nn.Conv2d(1, 1, 1), LargestLessMean()), (1, 2, 2), CPU)
    bounded = bound_network(network, region, 64)
    every = torch.tensor(list(product([-1, 0, 1], repeat=3)), dtype=torch.int8)
    spec = torch.tensor([[1.0, -1.0]]).expand(len(every), -1)
    rows = bounded.start(len(network.layers), spec, torch.zeros(len(every), dtype=torch.int64))
    for j in (1, 2):  # the last pixel wins for sure, whatever a split says
        bounded.low[j].fill_(0.1)
    assert bool(bounded.value(replace(rows, signs=every)).isfinite().all())


def test_after_a_split_it_is_the_game_of_who_is_left():
    bounded, rows = largest_less_mean()
    last = next(j for j, layer in enumerate(bounded.network.layers) if layer.decides_windows)
    rows.signs[0, bounded.slices[last - 1].start] = 1  # the second pixel beats the first
    # Weights of 1/3 each and 2/3 of the largest difference; less the mean, at most 1/4 + 2/3. Chords have 1/2, 1/4, 1/4 and 3/4.
    assert float(bounded.value(rows)) == pytest.approx(-11 / 12, abs=1e-6)


class Sum(nn.Module):
    """Nothing, and `weight` times the largest of 2 x 2 pixels plus `weights` times the pixels."""

    def __init__(self, weight, weights):
        super().__init__()
        self.weight, self.weights = weight, weights

    def forward(self, x):
        largest = nn.functional.max_pool2d(x, 2).flatten(1)
        value = self.weight * largest + (x.flatten(1) * self.weights.to(x)).sum(1, keepdim=True)
        return torch.cat([0 * largest, value], 1)


def test_bounds_with_any_multipliers_hold_in_every_subdomain_of_a_window():
    generator = torch.Generator().manual_seed(0)
    corners = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    region = Region.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU)
    splits = torch.tensor(list(product([-1, 0, 1], repeat=3)), dtype=torch.int8)
    close = 0
    for weight in (1.0, -1.0):
        network = Network(Sum(weight, torch.randn(4, generator=generator)), (1, 2, 2), CPU)
        bounded = bound_network(network, region, 64)
        met = network.inputs_of_activations(corners.view(-1, 1, 2, 2))
        unit = torch.cat(
            [start + units for start, units in zip(np.cumsum([0, *network.sizes]), bounded.units, strict=False)]
        )
        values = network.logits(corners.view(-1, 1, 2, 2))[:, 1]
        # The least value over a subdomain is at a corner: all ties of pixels meet the box there.
        inside = (met[:, None, unit] * splits >= 0).all(2)
        least = torch.where(inside, values[:, None], torch.inf).amin(0)
        for _ in range(200):
            alpha, beta = torch.rand(2, len(splits), 3, generator=generator)
            spec = torch.tensor([[0.0, 1.0]]).expand(len(splits), -1)
            rows = bounded.start(len(network.layers), spec, torch.zeros(len(splits), dtype=torch.int64))
            rows = replace(rows, signs=splits, alpha=alpha, beta=2 * beta * (splits != 0))
            found = bounded.value(rows)
            assert bool((found <= least + 1e-9).all())
            close += int((found > least - 0.05).sum())
    assert close > 100  # some are nearly exact: the test can fail
