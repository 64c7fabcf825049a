"""Sign, comparisons and roundings are split into their values; within the error of float32 an input takes both of them."""

import pytest
import torch
from exact import network
from test_exactness import verdict
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network, RoundingErrors

CPU = torch.device("cpu")


class Binarised(nn.Module):
    """The sign of a x + b of four numbers, written in one of the ways that exporters know; then their weighted sum and 0.1."""

    def __init__(self, form, shift):
        super().__init__()
        self.form, self.shift = form, shift

    def forward(self, x):
        z = x.flatten(1) - 0.5 + self.shift
        one = torch.ones_like(z)
        y = {
            "sign": lambda: torch.sign(z),
            "where": lambda: torch.where(z >= 0, one, -one),
            "greater": lambda: 2 * (z > 0).to(z.dtype) - 1,
            "less": lambda: 1 - 2 * (z < 0).to(z.dtype),
            "floor": lambda: 2 * torch.floor(z + 1) - 1,
            "round": lambda: 2 * torch.round(z + 0.5) - 1,
            "ceil": lambda: 2 * torch.ceil(z) - 1,
        }[self.form]()
        total = (y * torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=z.dtype)).sum(1, keepdim=True)
        return torch.cat([total + 1e-3, torch.zeros_like(total)], 1)


@pytest.mark.parametrize("form", ["sign", "where", "greater", "less", "floor", "round", "ceil"])
def test_a_sign_is_decided_on_either_side_and_not_within_rounding_of_its_jump(form):
    """Within 0.1 of 0.7 all four are 1; of 0.55 all may be -1; 1e-9 beside the jump float32 sees no difference."""
    for x, shift, epsilon, expected in (
        (0.7, 0.0, 0.1, True),
        (0.55, 0.0, 0.1, False),
        (0.5, 1e-9, 0.0, None),
        (0.5, 1e-4, 0.0, True),
    ):
        verified, point = verdict(Binarised(form, shift), torch.full((1, 2, 2), x), 0, epsilon)
        assert verified is expected, (x, shift)
        assert (point is not None) == (expected is False)


@pytest.mark.parametrize("kind", ["dense", "convolution, batch norm", "residual", "average pooling", "max pooling"])
def test_float32_is_off_by_less_than_the_bound_and_the_bound_is_small(kind):
    for seed in range(4):
        module = nn.Sequential(network(kind, seed), nn.Linear(3, 4), Step(), nn.Linear(4, 3)).eval()
        net, x = Network(module, (1, 4, 4), CPU), torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        bound, *_ = net.jump_errors(torch.ones(16, dtype=torch.float64)).values()
        apart = (module[:2](x).double() - module[:2].double()(x.double())).abs().amax(0)
        assert (apart <= bound).all()
        assert (bound < 1e-2).all()


class Step(nn.Module):
    def forward(self, z):
        return torch.sign(z)


def test_what_cancels_counts_as_large():
    """(x + 1e4) - 1e4 loses three digits of x, which no weight of the network shows."""
    with RoundingErrors():
        rows = (torch.tensor([[1.0], [0.0], [0.0]]) + 1e4) - 1e4
    assert float(rows[1]) > 1e-3
