"""Recorded runs: they serve fewer rows than were recorded, and few of them are kept."""

import pytest
import torch
from exact import network
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.core.errors import IncompatibleError


@pytest.fixture
def net():
    return Network(network("convolution, batch norm", 0), (1, 4, 4), torch.device("cpu"))


def test_fewer_rows_than_were_recorded_have_the_same_gradients(net):
    node, size = len(net.layers), net.num_outputs
    weights = torch.randn(10, size, dtype=torch.float64)
    assert net.tape(9, torch.float64) is net.tape(10, torch.float64)
    every, some = (net.tape(10, torch.float64).gradients(node, weights[:m]) for m in (10, 9))
    assert [g is None for g in every] == [g is None for g in some]
    assert all(len(b) == 9 and torch.allclose(a[:9], b) for a, b in zip(every, some, strict=True) if b is not None)


def test_the_last_two_recorded_runs_are_kept_and_more_only_of_small_ones(net):
    for rows in range(8, 64, 8):
        net.tape(rows, torch.float32)
    assert len(net._tapes) == 7
    first = net.tape(8, torch.float32)  # now the last that was asked for
    for rows in (1024, 2048):
        net.tape(rows, torch.float32)
        assert len(net._tapes) == 2
    assert net.tape(8, torch.float32) is not first


class Calling(nn.Module):
    """A network with one function of torch in it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        """Return the function of the flat input."""
        return self.function(x.flatten(1))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("max", lambda z: torch.max(z, other=-z)),
        ("min", lambda z: torch.min(input=z, other=-z)),
        ("where", lambda z: torch.where(z > 0, input=z, other=-z)),
    ],
)
def test_arguments_that_no_rewrite_takes_are_refused_in_one_line(name, function):
    with pytest.raises(IncompatibleError, match=rf"no linear bounds for {name} \(TypeError: ") as caught:
        Network(Calling(function), (1, 2, 2), torch.device("cpu"))
    assert "\n" not in str(caught.value)
