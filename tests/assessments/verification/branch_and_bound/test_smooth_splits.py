"""Smooth networks are decided by splitting the input intervals of their neurons."""

import pytest
import torch
from test_exactness import verdict
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.activations import cells, smooth_lines
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.rewrites import FLOOR, HARDSWISH, MISH, ROUND, SELU
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")


def smooth_network(activation, seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 3))
    for part in module:
        if isinstance(part, nn.Linear):
            part.weight.data *= 3
    return module.eval().requires_grad_(False)


class Sine(nn.Module):
    def forward(self, z):
        return torch.sin(z)


class Cosine(nn.Module):
    def forward(self, z):
        return z.cos()


class Round(nn.Module):
    def forward(self, z):
        return z.round()


def verdict_that_samples_allow(module, x, target, epsilon, seed):
    """The verdict of branch and bound, which no corner of the ball and none of 20,000 samples contradicts."""
    points = x + epsilon * (2 * torch.rand(20_000, 1, 2, 2) - 1)
    points[:16].copy_(x + epsilon * torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).view(16, 1, 2, 2))
    is_broken = bool((module.double()(points.double()).argmax(1) != target).any())
    module.float()
    verified, point = verdict(module, x, target, epsilon)
    assert not (verified and is_broken), seed
    if point is not None:
        assert int(module.double()(point.view(1, 1, 2, 2)).argmax()) != target
    return verified


def elu_of_two() -> nn.Module:
    return nn.ELU(2.0)


def softplus_of_three() -> nn.Module:
    return nn.Softplus(3.0)


BENT = [nn.Hardswish, nn.SELU, nn.CELU, nn.Mish, nn.LogSigmoid, nn.Softshrink, elu_of_two, softplus_of_three]


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, Sine, Cosine, *BENT])
def test_a_verdict_agrees_with_dense_samples_and_most_margins_are_decided(activation):
    decided = 0
    for seed in range(8):
        module, x = smooth_network(activation, seed), torch.full((1, 2, 2), 0.5)
        target = int(module(x[None]).argmax())
        epsilon = 0.02 + 0.03 * (seed % 4)
        decided += verdict_that_samples_allow(module, x, target, epsilon, seed) is not None
    assert decided >= 7


@pytest.mark.parametrize("smooth", [HARDSWISH, SELU, MISH])
@pytest.mark.parametrize("width", [0.01, 1.0, 8.0, 3000.0])
def test_lines_of_a_bent_curve_bound_it_between_the_points_of_their_grid(smooth, width):
    generator = torch.Generator().manual_seed(0)
    low = 8 * torch.rand(200, dtype=torch.float64, generator=generator) - 4 - width / 2
    lines = smooth_lines(smooth, low, low + width)
    z = low[:, None] + width * torch.linspace(0, 1, 4999, dtype=torch.float64)
    assert (smooth(z) >= lines.low[:, None] * z + lines.low_offset[:, None]).all()
    assert (smooth(z) <= lines.up[:, None] * z + lines.up_offset[:, None]).all()


@pytest.mark.parametrize("smooth", [nn.Sigmoid, nn.Tanh, nn.GELU])
def test_networks_with_kinks_and_smooth_neurons_are_decided_as_dense_samples_say(smooth):
    decided = set()
    for seed in range(6):
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), smooth(), nn.Linear(5, 5), nn.LeakyReLU(0.1),
            nn.Linear(5, 3),
        )  # fmt: skip
        for part in module[1::2]:
            part.weight.data *= 2
        module = module.eval().requires_grad_(False)
        x, epsilon = torch.full((1, 2, 2), 0.5), 0.05 + 0.1 * (seed % 3)
        target = int(module(x[None]).argmax())
        decided.add(verdict_that_samples_allow(module, x, target, epsilon, seed))
    assert True in decided


def test_a_row_in_a_cell_bounds_every_input_of_that_cell():
    """With any cells and multipliers, the bound of a subdomain lies below every sample that the subdomain contains."""
    generator = torch.Generator().manual_seed(0)
    for seed, activation in enumerate((nn.Sigmoid, nn.Tanh, nn.GELU, nn.Softplus, nn.ELU, Round)):
        module = smooth_network(activation, seed)
        net, region = (
            Network(module, (1, 2, 2), CPU),
            BallRegions.around(torch.full((1, 1, 2, 2), 0.5), Norm.LINF, 0.3, CPU),
        )
        bounded = bound_network(net, region, 64)
        x = 0.2 + 0.6 * torch.rand(40_000, 4, generator=generator, dtype=torch.float64)
        inputs = []

        def record(j, z, layers=net.layers, inputs=inputs):
            inputs.append(z.flatten(1).clone())
            return layers[j].activation(z)

        out, z = net.run(x.view(-1, 1, 2, 2), record), torch.cat(inputs, 1)
        spec = torch.randn(64, 3, generator=generator)
        rows = bounded.start(2, spec, torch.zeros(64, dtype=torch.int64))
        chosen = torch.rand(rows.signs.shape, generator=generator) < 0.2
        rows.signs.copy_(torch.randint(2, 6, rows.signs.shape, generator=generator) * chosen)
        rows.beta.copy_(torch.rand(rows.beta.shape, generator=generator) * chosen * 2)
        low, up = cells(torch.cat(bounded.low, 1), torch.cat(bounded.up, 1), rows.signs)
        bounds = bounded.value(rows)
        is_inside = ((z >= low[:, None]) & (z <= up[:, None])).all(2)
        values = (spec.double() @ out.T).masked_fill(~is_inside, torch.inf)
        assert (values >= bounds[:, None]).all()
        assert int(is_inside.any(1).sum()) >= 10


def test_the_cells_of_an_interval_cover_it():
    low, up = torch.tensor([-3.7], dtype=torch.float64), torch.tensor([1.3], dtype=torch.float64)
    for depth in range(1, 7):
        codes = torch.arange(2**depth, 2 ** (depth + 1))
        ends = torch.stack(cells(low, up, codes))
        assert torch.equal(ends[1, :-1], ends[0, 1:])
        assert ends[0, 0] == low
        assert ends[1, -1] == up


@pytest.mark.parametrize("ends", [(-0.4, 0.4), (-0.5, 0.5), (0.2, 1.1), (-3.7, 12.2), (0.5, 0.5), (-1e6, 1e6)])
@pytest.mark.parametrize("stairs", [ROUND, FLOOR])
def test_lines_of_a_staircase_bound_it_also_where_its_input_is_off(stairs, ends):
    low, up = (torch.tensor([end], dtype=torch.float64) for end in ends)
    for error in (0.0, 0.3):
        lines = smooth_lines(stairs, low, up, error)
        z = torch.linspace(*ends, 4001, dtype=torch.float64)
        for off in (-error, 0.0, error):
            assert (lines.low * z + lines.low_offset <= stairs(z + off) + 1e-9).all()
            assert (lines.up * z + lines.up_offset >= stairs(z + off) - 1e-9).all()
    lines, middle = smooth_lines(stairs, low, up), (low + up) / 2
    gap = (lines.up - lines.low) * middle + lines.up_offset - lines.low_offset
    assert float(gap) <= 1 + 1e-6 * abs(ends[0])


def test_more_jumps_than_are_split_exactly_are_bounded_and_decided_by_cells():
    """100 jumps in the ball: round(100 x) / 100 stays within 0.005 of x."""

    class Quantised(nn.Module):
        def forward(self, x):
            rounded = (x.flatten(1) * 100).round() / 100
            total = rounded.sum(1, keepdim=True)
            return torch.cat([total - 1.1, torch.zeros_like(total)], 1)

    module, x = Quantised(), torch.full((1, 2, 2), 0.5)
    assert verdict(module, x, 0, 0.15)[0] is True
    verified, point = verdict(module, x, 0, 0.25)
    assert verified is False
    assert int(module(point.view(1, 1, 2, 2)).argmax()) == 1
