"""A search that time ends in the middle of a batch keeps what it has found, and takes nothing for verified that is not."""

import torch
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.branch_and_bound.session import decide
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import OutOfTimeError

CPU = torch.device("cpu")
LIMITS = Limits(domains=4000, iterations=2, batch=2, memory=10**8, rows=256)
EPSILON = 0.2  # the class holds, which takes some batches


def interrupted(at):
    """(what is decided where call number `at` of the check, one in each batch, is the last; how many calls there were)."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
    for parameter in module.parameters():
        parameter.data *= 3
    x, calls = torch.rand(1, 8), 0

    def check(points, _):
        nonlocal calls
        calls += 1
        if calls == at:
            raise OutOfTimeError
        return torch.zeros(len(points), dtype=torch.bool)

    region, target = BallRegions.around(x, Norm.LINF, EPSILON, CPU), module(x).argmax(1)
    return decide(Network(module, (8,), CPU), region, target, torch.tensor([1e-6]), check, LIMITS, lambda: False), calls


def test_an_interruption_in_any_batch_keeps_the_subdomains_that_were_counted_and_verifies_nothing():
    whole, batches = interrupted(at=0)
    assert bool(whole.verified[0])
    assert batches > 5
    ends = [interrupted(at)[0] for at in range(1, batches + 1)]
    assert not any(bool(end.verified[0]) for end in ends)
    assert all(bool(end.exhausted[0]) for end in ends)
    counted = [int(end.domains[0]) for end in ends]
    assert counted == sorted(counted)
    assert counted[0] == 0 < counted[1]
    assert counted[-1] <= int(whole.domains[0])
