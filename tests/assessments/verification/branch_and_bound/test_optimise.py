"""A few steps of optimisation get most of what many get: a search has no more than a few for each subdomain."""

import itertools

import torch
from exact import improved
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

CPU = torch.device("cpu")


def test_twelve_steps_find_the_multipliers_of_splits_that_matter():
    torch.manual_seed(0)
    sizes = [20, 40, 40, 40, 3]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())][:-1]
    net = Network(nn.Sequential(*layers), (20,), CPU)
    bounded = improved(net, BallRegions.around(torch.rand(1, 20), Norm.LINF, 0.4, CPU), 10)
    spec = torch.tensor([[1.0, -1.0, 0.0]])
    before, root = optimise(bounded, bounded.start(len(net.layers), spec, torch.zeros(1, dtype=torch.int64)), 60, 1e9)
    back = bounded.backward(root, bounded.relaxation(root, torch.float32), torch.float32)
    columns = back.coefficients[0].abs().topk(5).indices
    rows = root.at(torch.zeros(32, dtype=torch.int64))
    rows.signs[:, columns] = torch.tensor(list(itertools.product([1, -1], repeat=5)), dtype=torch.int8)
    few, many = (optimise(bounded, rows, steps, 1e9)[0] - before for steps in (12, 400))
    assert (few >= -1e-5).all()
    assert float(few.clamp(max=3).sum() / many.clamp(max=3).sum()) > 0.8
