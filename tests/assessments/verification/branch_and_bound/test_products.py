"""Products, softmax, attention and normalisation are bounded by squares, exponentials and roots, and decided by splits."""

from collections.abc import Callable

import pytest
import torch
from test_smooth_splits import verdict_that_samples_allow
from torch import Tensor, nn

from windtunnel.assessments.verification.branch_and_bound.activations import Convex, smooth_lines
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.rewrites import EXP_TO_ONE, SQUARE
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import IncompatibleError

CPU = torch.device("cpu")


class Gated(nn.Module):
    """A gated layer: one half of the features is multiplied by the sigmoid of the other; then a square."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 10), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.first(x.flatten(1)).chunk(2, 1)
        return self.last((value * gate.sigmoid()) ** 2)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A block of attention over two tokens of two features, with layer normalisation."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.last, self.fused = nn.LayerNorm(2), nn.Linear(2, 6), nn.Linear(4, 3), fused

    def forward(self, x: Tensor) -> Tensor:
        tokens = 1 + x.flatten(2).squeeze(1).unflatten(1, (2, 2)) * torch.tensor([1.0, 3.0], dtype=x.dtype)
        q, k, v = self.qkv(self.norm(tokens)).chunk(3, -1)
        fused = nn.functional.scaled_dot_product_attention
        mixed = fused(q, k, v) if self.fused else (q @ k.transpose(1, 2) / 2**0.5).softmax(-1) @ v
        return self.last((tokens + mixed).flatten(1))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A transformer's own modules of torch over two tokens; `batch_first` false puts the batch second."""

    def __init__(self, block: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.block, self.batch_first, self.last = block, batch_first, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = 1 + x.flatten(2).squeeze(1).unflatten(1, (2, 2)) * torch.tensor([1.0, 3.0], dtype=x.dtype)
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        mixed = (
            self.block(tokens, tokens, tokens)[0]
            if isinstance(self.block, nn.MultiheadAttention)
            else self.block(tokens)
        )
        return self.last((mixed if self.batch_first else mixed.transpose(0, 1)).flatten(1))  # type: ignore[no-any-return]


class Of(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], outputs: int = 6) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(4, 6), function, nn.Linear(outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(3 * self.first(x.flatten(1))).flatten(1))  # type: ignore[no-any-return]


MODULES = {
    "products": Gated,
    "gelus": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), Gelus(), nn.Linear(3, 3)),
    "attention": lambda: Attention(fused=False),
    "fused attention": lambda: Attention(fused=True),
    "softmax inside": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Softmax(1), nn.Linear(5, 3)),
    "log_softmax inside": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.LogSoftmax(1), nn.Linear(5, 3)),
    "layer of an encoder": lambda: Encoder(nn.TransformerEncoderLayer(2, 1, 3, batch_first=True)),
    "batch second": lambda: Encoder(nn.TransformerEncoderLayer(2, 1, 3, activation="gelu"), batch_first=False),
    "heads with weights": lambda: Encoder(nn.MultiheadAttention(2, 2, batch_first=True)),
    "einsum": lambda: Of(lambda z: torch.einsum("nij,nkj->nik", *[z.unflatten(1, (2, 3))] * 2), 4),
    "where": lambda: Of(lambda z: torch.where(z > 0.1, z, 0.2 * z)),
    "masked fill": lambda: Of(lambda z: z.masked_fill(z < 0, -1.0)),
    "largest and least": lambda: Of(lambda z: z.unflatten(1, (2, 3)).max(1).values + torch.min(z[:, :3], z[:, 3:]), 3),
    "limits that are tensors": lambda: Of(lambda z: z.clamp(torch.zeros(6), max=torch.arange(6))),
    "rms norm": lambda: Of(nn.RMSNorm(6, eps=1e-3)),
    "instance norm": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 2, padding=1), nn.InstanceNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)
    ),
    "cast inside": lambda: Of(lambda z: z * (z > 0).float() + z.double().to(z.dtype)),
    "gated": lambda: Of(nn.GLU(1), 3),
    "log-sum-exp": lambda: Of(lambda z: z.unflatten(1, (2, 3)).logsumexp(1), 3),
    "steep": lambda: Of(nn.LeakyReLU(1.4)),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ),
}


def module_of(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return MODULES[name]().eval().requires_grad_(False)


@pytest.mark.parametrize("norm", [Norm.LINF, Norm.L2])
@pytest.mark.parametrize("name", MODULES)
def test_points_of_a_region_lie_within_the_bounds_of_every_layer(name, norm):
    net, x = Network(module_of(name, 0), (1, 2, 2), CPU), torch.rand(2, 1, 2, 2)
    region = BallRegions.around(x, norm, 0.1, CPU)
    bounded, rows = bound_network(net, region, 64), torch.arange(2).repeat_interleave(4000)
    points = region.points(region.centre[rows] + 0.3 * torch.randn(8000, 4, dtype=torch.float64), rows)
    inputs = list[Tensor]()

    def look(j: int, z: Tensor) -> Tensor:
        inputs.append(z.flatten(1))
        return net.layers[j].activation(z)

    logits = net.run(points.view(-1, 1, 2, 2), look)
    for z, low, up in zip(inputs, bounded.low, bounded.up, strict=True):
        assert (z >= low[rows]).all()
        assert (z <= up[rows]).all()
    spec = bounded.start(
        len(net.layers), torch.eye(3, dtype=torch.float64).repeat(2, 1), torch.arange(2).repeat_interleave(3)
    )
    least = bounded.value(spec).view(2, 3)
    assert (logits >= least[rows] - 1e-12).all()
    # The bounds say something: below the least logit by less than three times what the samples spread.
    assert (logits.view(2, 4000, 3).amin(1) - least < 3 * (logits.view(2, 4000, 3).amax(1) - least) / 2).all()


@pytest.mark.parametrize("name", MODULES)
def test_verdicts_agree_with_dense_samples_and_most_margins_are_decided(name):
    decided = 0
    # Where margins are wide, what is not decided costs all domains that the search may take.
    seeds, scale = (3, 0.1) if name in ("layer of an encoder", "batch second") else (5, 1.0)
    for seed in range(seeds):
        module, x = module_of(name, seed), torch.full((1, 2, 2), 0.5)
        x[0, 0, 0] += 0.2
        target = int(module(x[None]).argmax())
        decided += verdict_that_samples_allow(module, x, target, scale * (0.01 + 0.02 * (seed % 3)), seed) is not None
    assert decided >= 3


def test_a_softmax_at_the_end_is_left_out_and_one_in_the_middle_is_not():
    logits = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    net = Network(nn.Sequential(logits, nn.Softmax(1)).eval(), (1, 2, 2), CPU)
    x = torch.rand(5, 1, 2, 2, dtype=torch.float64)
    assert not net.layers
    assert torch.allclose(net.logits(x), logits.double()(x))


class Named(nn.Module):
    """A product with a constant that is given by its name."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(x.flatten(1).relu(), other=2.0)


class Gelus(nn.Module):
    """GELU and its tanh approximation as exporters write them."""

    def forward(self, x: Tensor) -> Tensor:
        z = 3 * x.flatten(1)
        first = z * 0.5 * (1 + torch.erf(z / 2**0.5))
        return first + z * 0.5 * (
            1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * torch.pow(z, torch.tensor(3.0))))
        )


class NormsByName(nn.Module):
    """Normalisation with the names of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.group = nn.LayerNorm(4), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.layer_norm(x.flatten(1), normalized_shape=[4], weight=self.layer.weight, cudnn_enable=True)
        return torch.group_norm(first, num_groups=2, bias=self.group.bias, eps=self.group.eps)


def test_normalisation_takes_its_arguments_by_name():
    module = NormsByName().eval()
    x = torch.rand(5, 1, 2, 2, dtype=torch.float64)
    assert torch.allclose(Network(module, (1, 2, 2), CPU).logits(x), module.double()(x))


class OwnPower(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) ** x.flatten(1)


def test_a_product_with_a_constant_by_name_is_affine_and_other_uses_are_named():
    assert len(Network(Named(), (1, 2, 2), CPU).layers) == 1
    implicit = nn.Sequential(nn.Flatten(), nn.Softmax(), nn.Linear(4, 3))
    for module, says in ((OwnPower(), "pow with the exponent"), (implicit, "softmax without a dimension")):
        with pytest.raises(IncompatibleError, match=says):
            Network(module, (1, 2, 2), CPU)


RSQRT = Convex("rsqrt", torch.rsqrt, torch.inf, lambda v: -(v**-1.5) / 2, (1e-5, torch.inf))


@pytest.mark.parametrize(
    ("convex", "low", "width"), [(SQUARE, -3.0, 6.0), (EXP_TO_ONE, -30.0, 30.0), (RSQRT, 1e-5, 2.0)]
)
def test_lines_of_convex_activations_are_bounds_and_touch(convex, low, width):
    generator = torch.Generator().manual_seed(0)
    ends = (low + width * torch.rand(500, 2, dtype=torch.float64, generator=generator)).sort(1).values
    ends[:50, 1] = ends[:50, 0] + 1e-9
    lines = smooth_lines(convex, ends[:, 0], ends[:, 1])
    z = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * torch.linspace(0, 1, 401, dtype=torch.float64)
    above = convex(z) - lines.low[:, None] * z - lines.low_offset[:, None]
    below = lines.up[:, None] * z + lines.up_offset[:, None] - convex(z)
    assert (above >= 0).all()
    assert (below >= 0).all()
    scale = 1e-9 * (1 + convex(ends).amax(1))
    assert (above.amin(1) <= scale).all()
    assert (below.amin(1) <= scale).all()
