"""Branch and bound is complete: on tiny networks it agrees with the enumeration of all activation patterns."""

import os

import pytest
import torch
from exact import NETWORKS, exact_margin, improved, network
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.branch_and_bound.session import decide
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import IncompatibleError

CPU = torch.device("cpu")
LIMITS = Limits(domains=4000, iterations=12, batch=64, memory=10**8, rows=256)
EACH = -(-int(os.environ.get("WINDTUNNEL_EXACT_NETWORKS", "50")) // len(NETWORKS))


def verdict(module, x, target, epsilon, norm=Norm.LINF):
    """(verified, counter-example or None) by branch and bound; None, None where undecided."""
    net = Network(module, tuple(x.shape), CPU)

    def check(points, _):
        logits = net.logits(points.view(-1, *x.shape))
        return logits.scatter(1, torch.full((len(points), 1), target), -torch.inf).amax(1) > logits[:, target] + 1e-6

    region = BallRegions.around(x[None], norm, epsilon, CPU)
    found = decide(net, region, torch.tensor([target]), torch.tensor([1e-6]), check, LIMITS, lambda: False)
    if found.examples:
        return False, found.examples[0]
    return (True, None) if found.verified[0] else (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_it_agrees_with_the_enumeration_of_all_activation_patterns(kind):
    decided = [0, 0]
    for seed in range(EACH):
        module = network(kind, seed)
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(1, 4, 4, generator=generator)
        target = int(module(x[None]).argmax())
        epsilon = 0.02 * 40 ** float(torch.rand((), generator=generator))
        low, high = (x.double() - epsilon).clamp(0, 1), (x.double() + epsilon).clamp(0, 1)
        margin = exact_margin(module, low, high, target)
        verified, point = verdict(module, x, target, epsilon)
        if abs(margin) < 1e-5:  # within rounding of a tie either may happen, but for a wrong certificate
            continue
        assert verified is (margin > 0), (seed, margin)
        if point is not None:
            assert (point >= low.flatten()).all()
            assert (point <= high.flatten()).all()
            logits = module.double()(point.view(1, 1, 4, 4))[0]
            assert logits.argmax() != target
        decided[verified] += 1
    assert min(decided) > 0, decided


FORMS = {
    "a constant added to the logits": lambda m: nn.Sequential(m, Affine(1.0, 3.0)),
    "scaled logits": lambda m: nn.Sequential(m, Affine(50.0, 0.0)),
    "normalised pixels": lambda m: nn.Sequential(Affine(1 / 0.3, -0.13 / 0.3), Affine(0.3, 0.13), m),
    "dropout in evaluation": lambda m: nn.Sequential(nn.Dropout(0.5), m, nn.Dropout(0.5)).eval(),
    "a softmax at the end": lambda m: nn.Sequential(m, nn.Softmax(1)),
}


class Affine(nn.Module):
    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["dense", "max pooling"])
def test_forms_of_one_function_get_equal_verdicts(kind, form):
    changed = FORMS[form]
    for seed in range(2):
        module, x = network(kind, seed), torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(seed))
        target = int(module(x[None]).argmax())
        for epsilon in (0.03, 0.1, 0.3):
            plain = verdict(module, x, target, epsilon)[0]
            assert plain is not None
            assert verdict(changed(module).eval(), x, target, epsilon)[0] is plain


def test_permuted_classes_get_equal_verdicts():
    module, x = network("dense", 5), torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(5))
    target, order = int(module(x[None]).argmax()), torch.tensor([2, 0, 1])
    found = [verdict(module, x, target, epsilon)[0] for epsilon in (0.02, 0.05, 0.1, 0.3)]
    module[-1].weight.data, module[-1].bias.data = module[-1].weight.data[order], module[-1].bias.data[order]
    permuted = int((order == target).nonzero())
    assert [verdict(module, x, permuted, epsilon)[0] for epsilon in (0.02, 0.05, 0.1, 0.3)] == found
    assert set(found) == {True, False}


def test_a_network_without_activations_is_decided_both_ways():
    torch.manual_seed(0)
    linear, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False), torch.rand(1, 4, 4)
    target = int(linear(x[None]).argmax())
    assert [verdict(linear, x, target, epsilon)[0] for epsilon in (0.001, 0.9)] == [True, False]


@pytest.mark.parametrize("norm", [Norm.L2, Norm.L1])
def test_no_random_point_of_a_proved_ball_is_misclassified_and_a_linear_radius_is_exact(norm):
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False)
    x = 0.5 + 0.1 * torch.rand(1, 4, 4)
    logits, weight = linear(x[None])[0], linear[1].weight
    target = int(logits.argmax())
    order = 2 if norm is Norm.L2 else torch.inf
    radius = min(
        float((logits[target] - logits[k]) / torch.linalg.vector_norm(weight[target] - weight[k], ord=order))
        for k in range(3)
        if k != target
    )
    assert verdict(linear, x, target, radius * 0.999, norm)[0] is True
    assert verdict(linear, x, target, min(radius * 1.001, 0.4), norm)[0] is not (radius < 0.4)


class Round(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.round()


SMOOTH = {
    "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "gelu": nn.GELU(), "gelu tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(), "softplus": nn.Softplus(), "relu6": nn.ReLU6(), "round": Round(), "hardtanh": nn.Hardtanh(), "prelu": nn.PReLU(4),
}  # fmt: skip


@pytest.mark.parametrize("norm", list(Norm)[:3])
@pytest.mark.parametrize("name", SMOOTH)
def test_random_points_of_a_region_lie_within_the_bounds_of_every_layer(name, norm):
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), SMOOTH[name], nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(16, 6),
        SMOOTH[name] if name != "prelu" else nn.ReLU(), nn.Linear(6, 3),
    ).eval()  # fmt: skip
    module[0].weight.data.mul_(3)
    x, net = torch.rand(2, 1, 4, 4), Network(module, (1, 4, 4), CPU)
    region = BallRegions.around(x, norm, {Norm.LINF: 0.1, Norm.L2: 0.4, Norm.L1: 1.0}[norm], CPU)
    bounded = improved(net, region, 5)
    for i in range(2):
        noise = torch.randn(2000, 16, dtype=torch.float64)
        noise[:500] = noise[:500] * (noise[:500].abs() == noise[:500].abs().amax(1, keepdim=True))
        rows = torch.full((2000,), i)
        points = region.points(region.centre[i] + 3 * noise.sign() * noise.abs().clamp(min=0.02), rows)
        met = []

        def look(j, z, met=met):
            met.append(z.flatten(1))
            return net.layers[j].activation(z)

        net.run(points.view(-1, 1, 4, 4), look)
        for z, low, up in zip(met, bounded.low, bounded.up, strict=True):
            assert (z >= low[i]).all()
            assert (z <= up[i]).all()


def test_what_has_no_linear_bounds_is_named():
    class Quotient(nn.Module):
        def forward(self, x):
            return (x / x.sigmoid()).flatten(1)

    class Fifth(nn.Module):
        def forward(self, x):
            return x.pow(5).flatten(1)

    class Looked(nn.Module):
        def forward(self, x):
            return nn.functional.embedding(x.round().long().flatten(1), torch.eye(3, dtype=x.dtype)).flatten(1)

    late = nn.Sequential(nn.Flatten(), nn.Softplus(threshold=1))
    refused = {"div": Quotient(), "pow with the exponent 5": Fifth(), "embedding": Looked(), "a threshold below": late}
    for says, module in refused.items():
        with pytest.raises(IncompatibleError, match=rf"{says}.*; use ReLU .* or windtunnel's smoothing"):
            Network(module, (1, 4, 4), CPU)


class InPlace(nn.Module):
    """Adds what a ReLU has changed under its hands: 2 relu(z), not z + relu(z)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 4), nn.Linear(4, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.layers[0](x.flatten(1))
        return self.layers[1](z + nn.functional.relu_(z))


class Indexed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, places = torch.ops.aten.adaptive_max_pool2d.default(x, [2, 2])
        return (values + places).flatten(1)


def test_what_would_be_read_as_another_function_is_refused():
    for module, says in ((InPlace(), "in place"), (Indexed(), "adaptive_max_pool2d with its indices")):
        with pytest.raises(IncompatibleError, match=says):
            Network(module, (1, 4, 4), CPU)


def test_it_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3)).train()
    Network(module, (1, 4, 4), CPU)
    assert module.training
    assert all(p.requires_grad and p.dtype is torch.float32 for p in module.parameters())
