"""Tiny networks whose robustness is known exactly: every pattern of activations by a linear programme of its own.

The enumeration shares nothing with branch and bound: each choice (active or not, which entry of a window) makes the network
affine, its matrices come from forward passes on unit vectors, and HiGHS minimises the margin where the choice holds.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.regions import BallRegions


class Choice(nn.Module):
    """An activation that can be told which of its affine cases to take; `cases` of each unit, `fixed` None for free."""

    fixed: tuple[int, ...] | None = None

    def options(self, z: Tensor) -> Tensor:
        """(n, units, cases): the values of the cases; the activation is the largest of them."""
        raise NotImplementedError

    def shape(self, z: Tensor) -> tuple[int, ...]:
        """The shape of the output."""
        return tuple(z.shape)

    def plain(self, z: Tensor) -> Tensor:
        """The activation as torch computes it."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        if self.fixed is None:
            self.units = self.options(z).shape[1]
            return self.plain(z)
        options = self.options(z)
        picked = options[:, torch.arange(len(self.fixed)), list(self.fixed)]
        self.slack = options - picked[..., None]  # must not be positive
        return picked.view(self.shape(z))


class Leaky(Choice):
    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = slope

    def options(self, z: Tensor) -> Tensor:
        return torch.stack([z.flatten(1), self.slope * z.flatten(1)], 2)

    def plain(self, z: Tensor) -> Tensor:
        return nn.functional.leaky_relu(z, self.slope) if self.slope else z.relu()


class Pool(Choice):
    def options(self, z: Tensor) -> Tensor:
        return z.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).flatten(1, 3)

    def shape(self, z: Tensor) -> tuple[int, ...]:
        return (len(z), z.shape[1], z.shape[2] // 2, z.shape[3] // 2)

    def plain(self, z: Tensor) -> Tensor:
        return nn.functional.max_pool2d(z, 2)


class Sign(Choice):
    """Three cases: 1, -1, and 0 where z is 0 as well."""

    def options(self, z: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(z), -torch.ones_like(z), torch.zeros_like(z)], -1).flatten(1, -2)

    def plain(self, z: Tensor) -> Tensor:
        return z.sign()

    def forward(self, z: Tensor) -> Tensor:
        picked = super().forward(z)
        if self.fixed is not None:
            above, below = (torch.tensor(self.fixed) != 1).to(z), (torch.tensor(self.fixed) != 0).to(z)
            self.slack = torch.cat([-z.flatten(1) * above, z.flatten(1) * below], 1)
        return picked


class Rounded(Choice):
    """One case for each integer from -6 to 6, where the input is within half of it (`shift` 0.5), or up to 1 beyond (0)."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def options(self, z: Tensor) -> Tensor:
        return torch.arange(-6.0, 7.0).to(z).expand(*z.shape, 13)

    def plain(self, z: Tensor) -> Tensor:
        return z.round() if self.shift else z.floor()

    def forward(self, z: Tensor) -> Tensor:
        picked = super().forward(z)
        if self.fixed is not None:
            least = picked - self.shift
            self.slack = torch.cat([least - z, z - least - 1], 1)
        return picked


class Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, 3), Leaky(), nn.Linear(3, size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def _normalised(features: int) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(features)
    for tensor in (made.running_mean, made.weight.data, made.bias.data):
        tensor.normal_()
    made.running_var.uniform_(0.2, 2)
    return made


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), Leaky(), nn.Linear(4, 3), Leaky(), nn.Linear(3, 3)),
    "convolution, batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, 2, 1), _normalised(2), Leaky(), nn.Flatten(), nn.Linear(8, 3)
    ),
    "residual": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), Leaky(), Residual(4), nn.Linear(4, 3)),
    "average pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2, 2), Leaky(), nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(2, 3)
    ),
    "max pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), Pool(), nn.Flatten(), nn.Linear(2, 3), Leaky(), nn.Linear(3, 3)
    ),
    "leaky": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 4), Leaky(0.2), nn.Linear(4, 3), Leaky(-0.3), nn.Linear(3, 3)
    ),
    "signs": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), Sign(), nn.Linear(3, 2), Sign(), nn.Linear(2, 3)),
    "sign and kinks": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 2), Leaky(), nn.Linear(2, 2), Sign(), nn.Linear(2, 3), Leaky(), nn.Linear(3, 3)
    ),
    "rounding, then kinks": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 2), Rounded(0.5), nn.Linear(2, 2), Leaky(), nn.Linear(2, 3)
    ),
    "kinks, then floor": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 2), Leaky(), nn.Linear(2, 2), Rounded(0.0), nn.Linear(2, 3)
    ),
}


def network(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = NETWORKS[kind]().eval().requires_grad_(False)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            part.weight.mul_(2.5)
    return module


def exact_margin(module: nn.Module, low: Tensor, high: Tensor, target: int) -> float:
    """The smallest margin of `target` over the box [low, high], each (*shape)."""
    module = module.double()
    module(low[None].double())
    choices = [part for part in module.modules() if isinstance(part, Choice)]
    cases = [{Pool: 4, Sign: 3, Rounded: 13}.get(type(part), 2) for part in choices]
    limits = np.stack([low.flatten().numpy(), high.flatten().numpy()], 1).astype(np.float64)
    basis = torch.cat([torch.zeros(1, low.numel()), torch.eye(low.numel())]).view(-1, *low.shape).double()
    smallest = np.inf
    per_layer = [itertools.product(range(n), repeat=part.units) for part, n in zip(choices, cases, strict=True)]
    for pattern in itertools.product(*per_layer):
        for part, fixed in zip(choices, pattern, strict=True):
            part.fixed = fixed
        out = module(basis)
        slack = torch.cat([part.slack.flatten(1) for part in choices], 1)
        matrix, constant = (slack[1:] - slack[0]).T.numpy(), slack[0].numpy()
        if (matrix.clip(0) @ limits[:, 0] + matrix.clip(None, 0) @ limits[:, 1] + constant > 1e-9).any():
            continue  # empty, by intervals alone
        for other in range(out.shape[1]):
            if other != target:
                margin = out[:, target] - out[:, other]
                solved = linprog((margin[1:] - margin[0]).numpy(), matrix, -constant, bounds=limits, method="highs")
                if solved.status == 0:
                    smallest = min(smallest, solved.fun + float(margin[0]))
    for part in choices:
        part.fixed = None
    module.float()
    return float(smallest)


def improved(net: Network, region: BallRegions, iterations: int) -> Bounded:
    """CROWN bounds of every layer, then alpha-CROWN bounds of every unit."""
    bounded = bound_network(net, region, 64)
    every = [torch.ones(2, len(region), layer.size, dtype=torch.bool) for layer in net.layers]
    improve_network(bounded, every, iterations, lambda: False)
    return bounded


def inputs_of_activations(net: Network, x: Tensor) -> Tensor:
    """(m, units): the inputs of all activations at x (m, *input_shape), in the order they run."""
    inputs = [x.flatten(1)[:, :0]]

    def look(j: int, z: Tensor) -> Tensor:
        inputs.append(z.flatten(1).clone())
        return net.layers[j].activation(z)

    net.run(x, look)
    return torch.cat(inputs, 1)
