"""Max pooling over 2 x 2 is bounded from above as one maximum: its offset is the value of a game, and its lines hold with splits too."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from exact import inputs_of_activations
from scipy.optimize import linprog
from torch import nn

from windtunnel.assessments.verification.branch_and_bound import intermediate, maxpool_bounds
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import best_weights, value_of
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import improved, optimise, with_planes
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")


def games(count, generator, numbers):
    """Bounds of the differences of some numbers over some points."""
    points = torch.randn(count, 6, numbers, generator=generator, dtype=torch.float64)
    return (points[:, :, :, None] - points[:, :, None, :]).amax(1)


def game_value(d, out):
    """By linear programming."""
    left = [i for i in range(len(d)) if not out[i]]
    a = np.c_[d.numpy()[np.ix_(left, left)], -np.ones(len(left))]
    solved = linprog([0] * len(left) + [1], a, np.zeros(len(left)), [[1] * len(left) + [0]], [1],
                     bounds=[(0, 1)] * len(left) + [(None, None)])  # fmt: skip
    return solved.fun


@pytest.mark.parametrize("numbers", [4, 5])
def test_the_weights_are_those_of_the_game(numbers):
    generator = torch.Generator().manual_seed(0)
    d = games(200, generator, numbers)
    out = torch.rand(200, numbers, generator=generator) < 0.3
    out[out.all(1)] = False
    weights = best_weights(d, out)
    value = value_of(d, weights, out)
    torch.testing.assert_close(weights.sum(1), torch.ones(200, dtype=torch.float64))
    assert bool((weights >= 0).all())
    assert not bool(weights[out].any())
    best = torch.tensor([game_value(*case) for case in zip(d, out, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(value, best)


def test_of_two_numbers_it_is_the_chord():
    d = torch.zeros(1, 4, 4, dtype=torch.float64)
    d[0, 0, 1], d[0, 1, 0] = 3.0, 1.0
    out = torch.tensor([[False, False, True, True]])
    weights = best_weights(d, out)
    torch.testing.assert_close(weights[0, :2], torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert float(value_of(d, weights, out)) == pytest.approx(0.75)


class LargestLessMean(nn.Module):
    """Of 2 x 2 pixels: nothing, and how far the largest is from the mean."""

    def forward(self, x):
        largest = nn.functional.max_pool2d(x, 2).flatten(1)
        return torch.cat([0 * largest, largest - x.flatten(1).mean(1, keepdim=True)], 1)


def largest_less_mean():
    """(the network over all that its pixels can be, its margin as a row)."""
    network = Network(LargestLessMean(), (1, 2, 2), CPU)
    bounded = bound_network(network, BallRegions.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU), 64)
    spec = torch.tensor([[1.0, -1.0]])
    return bounded, bounded.start(len(network.layers), spec, torch.zeros(1, dtype=torch.int64))


class ReLULess(nn.Module):
    """Of 2 x 2 pixels z between -1 and 1 + shifts: nothing, and how far the ReLU of the largest is from weights times z."""

    def __init__(self, shifts, weights, *, first):
        super().__init__()
        self.shifts, self.weights, self.first = shifts, weights, first

    def forward(self, x):
        z = 2 * x - 1 + self.shifts.to(x).view(1, 1, 2, 2)
        pool = nn.MaxPool2d(2)
        largest = (pool(z.relu()) if self.first else pool(z).relu()).flatten(1)
        return torch.cat([0 * largest, largest - (z.flatten(1) * self.weights.to(x)).sum(1, keepdim=True)], 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_relu_before_or_after_makes_nothing_one_more_of_the_numbers(first):
    """Pixels that know nothing of each other: the best plane is the game's, and with its weights it is met at a corner."""
    generator = torch.Generator().manual_seed(0)
    region = BallRegions.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU)
    for _ in range(5):
        shifts = torch.rand(4, generator=generator, dtype=torch.float64) - 0.5
        low, up = torch.cat([shifts - 1, torch.zeros(1)]), torch.cat([shifts + 1, torch.zeros(1)])
        order = [0, 2, 1, 3, 4]  # of windows: column after column
        d = up[order, None] - low[order]
        d.fill_diagonal_(0)
        nobody = torch.zeros(5, dtype=torch.bool)
        weights = best_weights(d, nobody)
        value = value_of(d, weights, nobody)
        network = Network(ReLULess(shifts, weights[[0, 2, 1, 3]], first=first), (1, 2, 2), CPU)
        assert [layer.follows_windows for layer in network.layers] == [False] * 4 + [True]
        bounded = bound_network(network, region, 64)
        rows = bounded.start(len(network.layers), torch.tensor([[1.0, -1.0]]), torch.zeros(1, dtype=torch.int64))
        assert float(bounded.value(rows)) == pytest.approx(-float(value), abs=1e-5)
        assert float(value) == pytest.approx(game_value(d, torch.zeros(5)))


class Used(nn.Module):
    """A ReLU, max pooling, and what else takes their values."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv = how, nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x):
        z = self.conv(x)
        y = nn.functional.relu_(z) if self.how == "in place" else z.relu()
        pooled = nn.functional.max_pool2d(y, 2)
        if self.how == "the ReLU again":
            pooled = pooled + y[..., ::2, ::2]
        if self.how == "what it was given again":
            pooled = pooled + z[..., ::2, ::2]
        if self.how == "a view of it":
            pooled = nn.functional.max_pool2d(y.flatten(2).unflatten(2, y.shape[2:]), 2)
        if self.how == "pooled twice":
            pooled = pooled + nn.functional.max_pool2d(y, 2)
        if self.how == "another ReLU after":
            pooled = pooled.relu()
        if self.how == "given back":
            return y
        return pooled.flatten(1)


@pytest.mark.parametrize(
    ("how", "joined"),
    [
        ("plainly", 1),
        ("in place", 1),
        ("what it was given again", 1),
        ("another ReLU after", 1),
        ("the ReLU again", 0),
        ("a view of it", 0),
        ("pooled twice", 0),
        ("given back", 0),
    ],
)
def test_a_relu_is_left_to_max_pooling_only_where_nothing_else_takes_its_values(how, joined):
    torch.manual_seed(0)
    module = Used(how).eval().requires_grad_(False)
    network = Network(module, (1, 6, 6), CPU)
    assert sum(layer.follows_windows for layer in network.layers) == joined
    x = torch.rand(5, 1, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(network.logits(x), module.double()(x).flatten(1))


def test_four_pixels_that_know_nothing_of_each_other_are_bounded_exactly():
    bounded, rows = largest_less_mean()
    assert float(bounded.value(rows)) == pytest.approx(
        -0.75, abs=1e-6
    )  # one pixel at 1, the others at 0; three chords say -1


class ChangedAfterwards(nn.Module):
    """What is pooled is changed in place, and used again."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 2, 3), nn.Linear(2 * 16 + 2 * 64, 3)

    def forward(self, x):
        z = self.conv(x)
        pooled = nn.functional.max_pool2d(z, 2).relu()
        z += 1
        return self.last(torch.cat([pooled.flatten(1), z.flatten(1)], 1))


NETS = {
    "changed in place afterwards": ChangedAfterwards,
    "a ReLU before": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "none before, one after": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 3)
    ),
    "a row and a column left over": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 6), nn.ReLU(), nn.Linear(6, 3)
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


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("norm", [Norm.LINF, Norm.L2])
@pytest.mark.parametrize("name", NETS)
def test_no_point_lies_below_a_bound_with_splits_and_without(name, norm, planes):
    torch.manual_seed(0)
    shape = (1, 9, 9) if "overlap" in name else (1, 10, 10)
    module = NETS[name]().eval().requires_grad_(False)
    network = Network(module, shape, CPU)
    assert network.has_windows == (name not in {"columns that overlap", "channels in the place of samples"})
    region = BallRegions.around(torch.rand(2, *shape), norm, 0.1 if norm is Norm.LINF else 0.7, CPU)
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
    met = inputs_of_activations(network, points.view(-1, *shape))
    starts = np.cumsum([0, *network.sizes])
    unit = torch.cat([starts[j] + units for j, units in enumerate(bounded.units)])
    low, up = torch.cat(bounded.low, 1)[sample], torch.cat(bounded.up, 1)[sample]
    assert bool((low <= met + 1e-9).all())
    assert bool((met <= up + 1e-9).all())
    spec = torch.randn(m, 3, generator=generator)
    value = (network.logits(points.view(-1, *shape)) * spec).sum(1)
    rows = bounded.start(end, spec, sample)
    if planes:
        rows = with_planes(bounded, rows, 10, 0)
        joined = any(layer.follows_windows and network.layers[j - 4].direct for j, layer in enumerate(network.layers))
        assert bool(rows.planes) == (joined and norm is Norm.LINF)
    for share in (0.0, 0.02, 0.2, 0.7):
        chosen = torch.rand(m, columns, generator=generator) < share
        signs = torch.where(chosen, met[:, unit].sign(), 0.0).to(torch.int8)
        alpha = torch.rand(m, columns, generator=generator)
        beta = torch.rand(m, columns, generator=generator) * chosen * 0.3
        for parent in (rows, replace(rows, alpha=alpha, beta=beta)):
            split = replace(parent, signs=signs)
            assert bool((bounded.value(split) <= value + 1e-9).all()), share


def test_a_subdomain_that_is_empty_has_a_bound_too():
    region = BallRegions.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU)
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
    """Nothing, and `weight` times the largest of 2 x 2 pixels, or the ReLU of it less 0.5, plus `weights` times the pixels."""

    def __init__(self, weight, weights, *, relu):
        super().__init__()
        self.weight, self.weights, self.relu = weight, weights, relu

    def forward(self, x):
        largest = (
            nn.functional.max_pool2d(x - 0.5, 2).relu() if self.relu else nn.functional.max_pool2d(x, 2)
        ).flatten(1)
        value = self.weight * largest + (x.flatten(1) * self.weights.to(x)).sum(1, keepdim=True)
        return torch.cat([0 * largest, value], 1)


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_bounds_with_any_multipliers_hold_in_every_subdomain_of_a_window(relu, planes, monkeypatch):
    monkeypatch.setattr(maxpool_bounds, "_PART", 1.0)
    generator = torch.Generator().manual_seed(0)
    # The least value over a subdomain is at one of these: all ties of pixels, and of pixels with 0.5, meet the box there.
    corners = torch.tensor(list(product([0.0, 0.5, 1.0], repeat=4)), dtype=torch.float64)
    region = BallRegions.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.5, CPU)
    kinks = 3 + relu
    splits = torch.tensor(list(product([-1, 0, 1], repeat=kinks)), dtype=torch.int8)
    close = 0
    for weight in (1.0, -1.0):
        network = Network(Sum(weight, torch.randn(4, generator=generator), relu=relu), (1, 2, 2), CPU)
        bounded = bound_network(network, region, 64)
        met = inputs_of_activations(network, corners.view(-1, 1, 2, 2))
        unit = torch.cat(
            [start + units for start, units in zip(np.cumsum([0, *network.sizes]), bounded.units, strict=False)]
        )
        assert len(unit) == kinks
        values = network.logits(corners.view(-1, 1, 2, 2))[:, 1]
        inside = (met[:, None, unit] * splits >= 0).all(2)
        least = torch.where(inside, values[:, None], torch.inf).amin(0)
        spec = torch.tensor([[0.0, 1.0]])
        start = bounded.start(len(network.layers), spec, torch.zeros(1, dtype=torch.int64))
        start = with_planes(bounded, start, 10, 0) if planes else start
        assert bool(start.planes) == (planes and relu)
        start = start.at(torch.zeros(len(splits), dtype=torch.int64))
        for _ in range(200):
            alpha, beta = torch.rand(2, len(splits), kinks, generator=generator)
            rows = replace(start, signs=splits, alpha=alpha, beta=2 * beta * (splits != 0))
            found = bounded.value(rows)
            assert bool((found <= least + 1e-6).all())
            close += int((found > least - 0.05).sum())
    assert close > 100  # some are nearly exact: the test can fail


def pooled_twice():
    """(a network that pools ReLUs twice, two regions of it, six linear functions)."""
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip
    network = Network(module.requires_grad_(False), (1, 14, 14), CPU)
    bounded = bound_network(network, BallRegions.around(torch.rand(2, 1, 14, 14), Norm.LINF, 0.3, CPU), 64)
    sample = torch.arange(2).repeat_interleave(3)
    return network, bounded, bounded.start(len(network.layers), torch.randn(6, 3), sample)


def test_planes_of_windows_bound_better_than_their_lines():
    _, bounded, rows = pooled_twice()
    plain = optimise(bounded, rows, 40, torch.inf)[1]
    bent = with_planes(bounded, plain, 40, 0)
    gained = bounded.value(bent) - bounded.value(plain)
    assert bool((gained > -1e-6).all())
    assert float(gained.mean()) > 0.03 * float(-bounded.value(plain).mean())
    bounded.memory = 100
    assert not with_planes(bounded, plain, 5, 0).planes
    slopes = improved(bounded, rows, 40, torch.inf)
    torch.testing.assert_close(bounded.value(slopes), bounded.value(plain))
    joined = type(bent).joined([bent.at(torch.tensor([0, 3])), bent.at(torch.tensor([5]))])
    torch.testing.assert_close(bounded.value(joined), bounded.value(bent)[[0, 3, 5]])


def test_what_a_window_gains_with_its_bounds_adds_up_to_its_offset():
    """The value of a game is linear in its entries, as long as the best weights stay: Euler's theorem."""
    network, bounded, rows = pooled_twice()
    gain = intermediate._Gain(bounded)
    gain.add(rows)
    relaxation = bounded.relaxation(rows, torch.float32)
    lost = -bounded.backward(rows, relaxation, torch.float32).coefficients.clamp(max=0)
    for j, layer in enumerate(network.layers):
        if layer.follows_windows:
            found = sum(
                (gain.of_layer(of)[1] * bounded.up[of] - gain.of_layer(of)[0] * bounded.low[of]).sum()
                for of in (j - 4, j - 3, j - 2)
            )
            at = slice(bounded.slices[j - 2].start, bounded.slices[j].stop)  # pairs, last kinks, ReLUs
            offset = float((lost * relaxation.kinks.offset)[:, at].sum())
            assert 0.98 * offset < float(found) < 1.0001 * offset  # some kinks have chords of their own


@pytest.mark.parametrize("seed", [3, 5])
def test_units_that_are_carried_together_with_planes_keep_apart_what_each_sees(seed):
    """Windows at the border see fewer inputs; weights for others would count for other units. Found by ascent, not at random points."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(100, 3),
    ).requires_grad_(False)  # fmt: skip
    module[0].weight.sub_(module[0].weight.mean((1, 2, 3), keepdim=True)).mul_(3)
    module[0].bias.copy_(-torch.rand(3) * 0.1)
    module[3].weight.mul_(3)
    network = Network(module, (1, 20, 20), CPU)
    region = BallRegions.around(torch.rand(1, 1, 20, 20) * 0.1 + 0.85, Norm.LINF, 0.05, CPU)
    bounded = bound_network(network, region, 64)
    every = [torch.ones(2, 1, layer.size, dtype=torch.bool) for layer in network.layers]
    improve_network(bounded, every, 10, lambda: False)
    before, size = module.double()[:4], network.sizes[5]
    for side, bound in ((1, bounded.up[5]), (-1, -bounded.low[5])):
        x = torch.lerp(region.low, region.high, torch.rand(4 * size, 400, dtype=torch.float64))
        for _ in range(10):
            x.requires_grad_(True)
            value = side * before(x.view(-1, 1, 20, 20)).view(4, size, size).diagonal(dim1=1, dim2=2)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            x = torch.where(gradient < 0, region.low, torch.where(gradient > 0, region.high, x.detach()))
        value = side * before(x.view(-1, 1, 20, 20)).view(4, size, size).diagonal(dim1=1, dim2=2)
        assert bool((value <= bound + 1e-9).all())
