"""The adaptive attack: obstacles are named, what is replaced is the derivative alone, and no number comes from a stand-in."""

import copy
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from benchmarks.gallery import masks
from benchmarks.gallery.defences import Coded, Inference, LateSwitch, OwnGenerator
from benchmarks.gallery.unseen import Neighbours
from tests.conftest import classifier_of
from windtunnel.assessments.attacks import assess as attacks
from windtunnel.assessments.attacks.adaptive import adapt, obstacles
from windtunnel.assessments.attacks.adaptive.obstacles import Diagnosis, ObstacleKind, diagnose
from windtunnel.assessments.attacks.adaptive.search import COMMON, remedies_for
from windtunnel.assessments.attacks.adaptive.surrogates import GradientRemedy, Remedied
from windtunnel.assessments.attacks.adaptive.torchscript import with_operations
from windtunnel.assessments.attacks.fresh_draws import is_random
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.assessments.attacks.profiles import PROFILES, Member
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.boundary.models.twin import WithTwin
from windtunnel.core.contracts import Capability, Norm, ThreatModel, Verdict
from windtunnel.core.criterion import SOFTMAX, Criterion
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import seeded
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.result import AssessmentResult
from windtunnel.reporting.report.sections import front
from windtunnel.reporting.report.sections.assessment import obstacle_tables

BUDGET = Budget(norm=Norm.LINF, epsilon=0.1)
Make = Callable[[nn.Module], nn.Module]


class Sign(nn.Module):
    """Takes the sign."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(x)


def _binarised(inner: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), Sign(), nn.Linear(64, 10))


def _winners(inner: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), masks.WinnersTakeAll(), nn.Linear(64, 10))


def _hooked(inner: nn.Module) -> nn.Module:
    outer = nn.Sequential(nn.Identity(), inner)
    outer[0].register_full_backward_hook(lambda _, gradients, __: (0 * gradients[0],))
    return outer


def _in_front(change: Callable[[Tensor], Tensor]) -> Make:
    return lambda inner: masks.Around(inner, before=change)


def _in_vmap(inner: nn.Module) -> nn.Module:
    """Answer image by image; the images are rounded."""
    return masks.Around(nn.Identity(), before=torch.vmap(lambda image: inner((7 * image[None]).round() / 7)[0]))


class _ZeroBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 0 * gradient


def _without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x + 0.1


def _hooked_tensor(x: Tensor) -> Tensor:
    x = 1 * x
    if x.requires_grad:
        x.register_hook(torch.zeros_like)
    return x


class _StuckNorm(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> nn.BatchNorm2d:
        return super().train(True)


class _Alternating(nn.Module):
    """Answers every second call for the mirrored image."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x if self.calls % 2 else x.flip(-1))


class _MovingAverage(nn.Module):
    """Subtracts a moving average of what it was asked before."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.mul_(0.7).add_(0.3 * x.mean())
        return self.inner(x - self.average)


class _Descending(nn.Module):
    """Moves a copy of its input by `backward`, and reads its `grad`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_()
            self.inner(point).logsumexp(1).sum().backward()
        return self.inner(point.detach() + 0.02 * point.grad.sign())


class _HookedNode(nn.Module):
    """Flips the gradient by a hook on a node of torch's graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = 1 * (1 * x)
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: tuple(g.flip(-1) for g in gradients))
            y.grad_fn.register_hook(lambda gradients, _: tuple(None if g is None else -g for g in gradients))
        return self.inner(y)


def _largest_alone(inner: nn.Module) -> nn.Module:
    """The logit of the answer, and zero for the other classes: its gradient is right, and says nothing of them."""

    def after(z: Tensor) -> Tensor:
        best = z.topk(1, 1)
        return torch.zeros_like(z).scatter(1, best.indices, best.values.abs())

    return masks.Around(inner, after=after)


def _ranked(inner: nn.Module) -> nn.Module:
    """Ranks its logits in numpy."""
    return masks.Around(inner, after=lambda z: torch.from_numpy(z.detach().numpy().argsort(1).argsort(1)).float())


def _in_half(inner: nn.Module) -> nn.Module:
    half = copy.deepcopy(inner).half()
    return masks.Around(half, before=lambda x: x.half(), after=lambda z: (z * 1e-6).float() * 1e6)


def _cached(inner: nn.Module) -> nn.Module:
    return masks.Cache(inner, 0.15)


def _deployed(inner: nn.Module) -> nn.Module:
    return WithTwin(masks.rounded_logits(inner), inner)


OBSTACLES: list[tuple[Make, ObstacleKind, str]] = [
    (masks.bit_depth, ObstacleKind.ROUNDING, "rounds to 8 levels: zero gradient"),
    (masks.jpeg, ObstacleKind.ROUNDING, "rounds to"),
    (masks.thermometer, ObstacleKind.COMPARISON, "compares with thresholds"),
    (masks.no_gradient, ObstacleKind.DETACHED, "detaches from the graph"),
    (masks.wrong_sign, ObstacleKind.WRONG_GRADIENT, "it falls where the gradient says that it rises"),
    (masks.clipped_gradient, ObstacleKind.CUSTOM_BACKWARD, "calls _Clipped, whose backward pass is not the derivative"),
    (masks.argmax_inside, ObstacleKind.SELECTION, "answers by the largest alone"),
    (masks.distilled, ObstacleKind.LARGE_LOGITS, "the softmax is 0 or 1"),
    (masks.probabilities, ObstacleKind.PROBABILITIES, "a second softmax"),
    (masks.clamped, ObstacleKind.SATURATION, "saturated: most values of its clamp"),
    (masks.random_noise, ObstacleKind.RANDOM, "draws at random (randn_like)"),
    (masks.random_resizing, ObstacleKind.RANDOM, "draws at random (randint)"),
    (masks.hash_noise, ObstacleKind.DISCONTINUOUS, "changes the logits by"),
    (masks.Purifying, ObstacleKind.ITERATION, "takes gradient steps of its own"),
    (_Descending, ObstacleKind.ITERATION, "takes gradient steps of its own"),
    (masks.BatchStatistics, ObstacleKind.BATCH, "depends on the batch"),
    (masks.CountsCalls, ObstacleKind.STATE, "keeps state between calls"),
    (_cached, ObstacleKind.STATE, "after 12 calls for inputs within 0.004: the model keeps state"),
    (OwnGenerator, ObstacleKind.RANDOM, "draws at random: two calls differ"),
    (masks.Reseeding, ObstacleKind.RESEEDED, "seeds torch's generator"),
    (_binarised, ObstacleKind.SIGN, "layer 2 (Sign) takes the sign: zero gradient"),
    (_winners, ObstacleKind.SELECTION, "layer 2 (WinnersTakeAll) keeps the k largest"),
    (_in_front(lambda x: x * 8 // 1 / 8), ObstacleKind.ROUNDING, "rounds to 9 levels"),
    (_in_front(lambda x: x - x % 0.125), ObstacleKind.ROUNDING, "takes remainders"),
    (_in_front(lambda x: torch.heaviside(x - 0.5, x.new_zeros(1))), ObstacleKind.SIGN, "takes the sign"),
    (_in_front(_without_graph), ObstacleKind.DETACHED, "detaches from the graph"),
    (_in_front(lambda x: torch.tensor(x.tolist())), ObstacleKind.OUTSIDE_THE_GRAPH, "leaves torch"),
    (_ranked, ObstacleKind.OUTSIDE_THE_GRAPH, "leaves torch"),
    (_in_half, ObstacleKind.LOW_PRECISION, "computes in float16 (11 bits of precision)"),
    (_in_front(_ZeroBackward.apply), ObstacleKind.CUSTOM_BACKWARD, "calls _ZeroBackward"),
    (_in_front(_hooked_tensor), ObstacleKind.GRADIENT_HOOK, "registers a hook"),
    (_in_front(_StuckNorm(1)), ObstacleKind.BATCH, "layer before (_StuckNorm) is in training mode"),
    (_Alternating, ObstacleKind.STATE, "answers change after 1 call"),
    (_MovingAverage, ObstacleKind.STATE, "answers change after 1 call"),
    (_hooked, ObstacleKind.GRADIENT_HOOK, "layer 0 (Identity) has a hook"),
    (_largest_alone, ObstacleKind.SELECTION, "keeps the k largest"),
    (_HookedNode, ObstacleKind.GRADIENT_HOOK, "registers a hook that may change a gradient"),
    (_in_front(torch.vmap(lambda image: (7 * image).round() / 7)), ObstacleKind.ROUNDING, "rounds to 8 levels"),
    (_in_front(lambda x: _ranks(x.flatten(1)).view_as(x)), ObstacleKind.SELECTION, "ranks: no gradient"),
    (
        _deployed,
        ObstacleKind.OUTSIDE_THE_GRAPH,
        "answers by a deployed file outside of torch, with the gradient of its twin",
    ),
]


def _ranks(flat: Tensor) -> Tensor:
    return torch.zeros_like(flat).scatter(1, flat.sort(1).indices, torch.linspace(0, 1, flat.shape[1]).expand_as(flat))


def _diagnosed(module: nn.Module, subject: Subject) -> Diagnosis:
    data = subject.dataset
    return diagnose(module, SOFTMAX, data.inputs, data.targets, 0.1, seed=0)


@pytest.mark.parametrize(("make", "kind", "words"), OBSTACLES, ids=lambda case: getattr(case, "__name__", None))
def test_an_obstacle_is_named_with_its_evidence(
    make: Make, kind: ObstacleKind, words: str, digits_subject: Subject
) -> None:
    obstacles = _diagnosed(make(digits_subject.classifier.module).eval(), digits_subject).obstacles
    assert any(words in obstacle.sentence for obstacle in obstacles if obstacle.kind is kind), obstacles


def test_the_operations_of_a_torchscript_program_are_named(digits_subject: Subject) -> None:
    """The graph answers as the program, bit for bit, for batches of other sizes too, and in training mode as in eval mode."""
    x = digits_subject.dataset.inputs
    program = torch.jit.trace(masks.bit_depth(digits_subject.classifier.module), x[:2])
    graph = with_operations(nn.Sequential(nn.Identity(), program), x).eval()
    assert torch.equal(graph(x), program(x))
    assert any("rounds to 8 levels" in obstacle.sentence for obstacle in _diagnosed(graph, digits_subject).obstacles)
    assert with_operations(digits_subject.classifier.module, x) is digits_subject.classifier.module


def test_an_honest_network_has_no_obstacles(digits_subject: Subject) -> None:
    assert _diagnosed(digits_subject.classifier.module, digits_subject).obstacles == ()


class _RecurrentRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 16), torch.zeros(len(x), 16)
        for row in x.squeeze(1).unbind(1):
            state = self.cell(row, state)
        return self.out(state[0])


def test_a_map_of_several_dimensions_is_called_as_it_is(digits_subject: Subject) -> None:
    double = torch.vmap(lambda image: (image, image), out_dims=(0, 1))
    model = masks.Around(digits_subject.classifier.module, before=lambda x: double(x)[0])
    assert _diagnosed(model, digits_subject).obstacles == ()


def test_a_cell_that_takes_many_tensors_is_traced(digits_subject: Subject) -> None:
    assert all(o.kind in COMMON for o in _diagnosed(_RecurrentRows(), digits_subject).obstacles)


def test_low_precision_with_a_right_gradient_is_no_obstacle(digits_subject: Subject) -> None:
    """A network in bfloat16 is attacked at the cost of standard."""
    inner = copy.deepcopy(digits_subject.classifier.module).bfloat16()
    assert _diagnosed(masks.Around(inner, before=lambda x: x.bfloat16()), digits_subject).obstacles == ()


class _ReluByComparison(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x > 0)


class _MeanOfLargest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.topk(8, 1).values.sort(1).values


@pytest.mark.parametrize("layer", [_ReluByComparison(), _MeanOfLargest()])
def test_an_operation_through_which_the_gradient_is_right_is_no_obstacle(
    layer: nn.Module, digits_subject: Subject
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.LazyLinear(10))
        network(digits_subject.dataset.inputs[:2])
    assert _diagnosed(network, digits_subject).obstacles == ()


@pytest.mark.parametrize("make", [case[0] for case in OBSTACLES if case[1] is not ObstacleKind.RANDOM])
def test_remedies_change_the_derivative_alone(make: Make, digits_subject: Subject) -> None:
    """The class of every output stays, and the logits too, bit for bit, where the remedy attacks the output."""
    module, x = make(digits_subject.classifier.module).eval(), digits_subject.dataset.inputs[:6]
    diagnosis = _diagnosed(module, digits_subject)
    for remedy in remedies_for(diagnosis, 0.1, may_rewrite=True):
        if remedy.fresh_calls > 1:  # a mean over calls, as over draws
            continue
        with torch.no_grad():
            expected = make(digits_subject.classifier.module).eval()(x)
        logits = Remedied(make(digits_subject.classifier.module).eval(), remedy)(x.clone().requires_grad_())
        assert torch.equal(logits.argmax(1), expected.argmax(1)), remedy.name
        if remedy.logits_at is None and remedy.scale == 1.0:
            assert torch.equal(logits, expected), remedy.name


@pytest.mark.parametrize(
    "make",
    [masks.bit_depth, masks.no_gradient, masks.clipped_gradient, masks.wrong_sign, Inference, _HookedNode, _in_vmap],
)
def test_surrogates_give_the_gradient_of_the_network_behind(make: Make, digits_subject: Subject) -> None:
    """At inputs that the preprocessing leaves as they are, the derivative is that of the network alone."""
    inner = digits_subject.classifier.module
    x = (digits_subject.dataset.inputs[:6] * 7).round() / 7
    remedied = Remedied(make(inner).eval(), GradientRemedy("straight-through", operations=True, custom=True))
    gradients = []
    for model in (remedied, inner):
        point = x.clone().requires_grad_()
        gradients.append(
            torch.autograd.grad(SOFTMAX.loss(model(point), digits_subject.dataset.targets[:6]).sum(), point)[0]
        )
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_a_gradient_that_few_bits_lose_is_that_of_float32(digits_subject: Subject) -> None:
    """The logits are of the low precision, bit for bit; their gradient, which would be zero or infinite in it, is not."""
    inner, x = digits_subject.classifier.module, digits_subject.dataset.inputs[:6]
    model = _in_half(inner)
    remedies = remedies_for(_diagnosed(model, digits_subject), 0.1, may_rewrite=True)
    remedy = next(r for r in remedies if r.name == "straight-through surrogates")
    gradients = []
    for network in (inner, Remedied(model, remedy)):
        point = x.clone().requires_grad_()
        logits = network(point)
        gradients.append(torch.autograd.grad(logits[:, 3].sum(), point)[0].flatten())
    assert torch.equal(logits, model(x))
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.999


@pytest.mark.usefixtures("cheap_standard")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_answers_in_another_float_type_is_attacked(dtype: torch.dtype, digits_subject: Subject) -> None:
    """Libraries raise on logits of such a type: they get float32."""
    make = lambda inner: masks.Around(copy.deepcopy(inner).to(dtype), before=lambda x: x.to(dtype))  # noqa: E731
    hidden = _hidden(make, digits_subject, 12)
    for library, algorithm in (
        ("windtunnel", "adaptive"),
        ("torchattacks", "Square"),
        ("foolbox", "LinfDeepFoolAttack"),
    ):
        entry = AttackEntry(library=library, algorithm=algorithm)
        assert attacks.assess("it", entry, BUDGET, hidden).metrics["n_succeeded"] > 0


class _Residual(nn.Module):
    """A convolutional network whose addition torch can quantise."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.add, self.out = torch.ao.nn.quantized.FloatFunctional(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        return self.out(nn.functional.max_pool2d(self.add.add_relu(x, self.inner(x)), 2).flatten(1))


def _static(network: nn.Module, x: Tensor) -> nn.Module:
    wrapped = torch.ao.quantization.QuantWrapper(network).eval()
    wrapped.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
    torch.ao.quantization.prepare(wrapped, inplace=True)(x)
    return torch.ao.quantization.convert(wrapped)


def _dynamic(network: nn.Module, x: Tensor) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear})


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "quantise"), [(_Residual, _static), (_perceptron, _static), (_perceptron, _dynamic)])
def test_modules_that_torch_quantised_get_the_gradient_of_the_floats(
    make: Callable[[], nn.Module], quantise: Callable[[nn.Module, Tensor], nn.Module], digits_subject: Subject
) -> None:
    """torch has no derivative of its quantised operators, and a straight-through one is near that of the network before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make().eval()
    x = digits_subject.dataset.inputs[:16]
    quantised = quantise(copy.deepcopy(network), x)
    obstacles = _diagnosed(quantised, digits_subject).obstacles
    assert any(obstacle.kind is ObstacleKind.ROUNDING for obstacle in obstacles), obstacles
    gradients = []
    for model in (network, Remedied(quantised, GradientRemedy("straight-through", operations=True))):
        point = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(model(point)[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.9


def test_the_choice_of_nearest_neighbours_has_a_gradient(digits_subject: Subject) -> None:
    """It is near that of votes weighted by the distance."""
    data = digits_subject.dataset
    x, labels, gradients = data.inputs[:16], data.targets[:16], []
    hard, soft = (Neighbours(data.inputs[16:], data.targets[16:], 10, width) for width in (0.0, 1.0))
    for model in (soft, Remedied(hard, GradientRemedy("straight-through", operations=True))):
        point = x.clone().requires_grad_()
        votes = model(point).gather(1, labels[:, None]).sum()
        gradients.append(torch.autograd.grad(votes, point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.5


def test_a_narrow_surrogate_of_a_selection_moves_what_is_nearly_chosen() -> None:
    """Its width is the range of the chosen values, however large the others are."""
    values = torch.tensor([[0.0, 1.0, 2.0, 3.0, 500.0, 900.0, 2000.0]] * 2)
    rows = torch.arange(14.0).view(7, 2)
    model = masks.Around(nn.Identity(), before=lambda x: rows[x.topk(3, largest=False).indices].sum(1))
    point = values.clone().requires_grad_()
    logits = Remedied(model, GradientRemedy("narrow", operations=True, width=0.3))(point)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), point)
    assert bool((gradient[:, 4:].abs() < 1e-6).all())
    assert bool((gradient[:, 1:4].abs() > 1e-2).all())


def test_rows_of_a_table_that_buckets_choose_have_a_gradient(digits_subject: Subject) -> None:
    """It is near that of sigmoids at the edges of the buckets."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hard = Coded(10).eval()
    soft, gradients = copy.deepcopy(hard), []
    soft.is_soft = True
    for model in (soft, Remedied(hard, GradientRemedy("straight-through", operations=True))):
        point = digits_subject.dataset.inputs[:16].clone().requires_grad_()
        gradients.append(torch.autograd.grad(model(point)[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.5


class _Rounding(torch.autograd.Function):
    """Rounds to fifths, and gives no gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (5 * x).round() / 5

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 0 * gradient


class _WithoutBackward(torch.autograd.Function):
    forward = _Rounding.forward


class _WithRange(torch.autograd.Function):
    """Rounds, and returns where it cut as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        is_inside = x < 0.9
        ctx.mark_non_differentiable(is_inside)
        return (x / scale).round().clamp(0, 5) * scale, is_inside

    @staticmethod
    def backward(ctx: object, gradient: Tensor, _: object) -> tuple[Tensor, None]:  # type: ignore[override]
        return 0 * gradient, None


class _InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.from_numpy((5 * x.detach().numpy()).round() / 5)

    backward = _Rounding.backward


class _RoundedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(5).round_().div_(5)

    backward = _Rounding.backward


class _Fifths(nn.Module):
    """Rounds by a custom function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _perceptron_with(layer: nn.Module) -> nn.Module:
    """Return a perceptron with another layer behind its first linear one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.Linear(32, 10)).eval()


def _step_by_quotient(h: Tensor) -> Tensor:
    return h / (h.abs() + 1e-30)


@torch.jit.script
def _scripted(h: Tensor) -> Tensor:
    return (5 * h).round() / 5


def _losers_set_to_zero(h: Tensor) -> Tensor:
    return h.scatter(1, h.topk(24, 1, largest=False).indices, 0.0)


def _without_low_bits(h: Tensor) -> Tensor:
    bits = h.contiguous().view(torch.int32)
    return ((bits >> 20) << 20).view(torch.float32)


def _with_spoilt_memory(h: Tensor) -> Tensor:
    """Multiply by a tensor that the graph gets back as noise."""
    with saved_tensors_hooks(lambda t: t, torch.randn_like):
        return h * torch.ones_like(h)


def _filled_below(h: Tensor) -> Tensor:
    return torch.ones_like(h).masked_fill_(h < 0, -1.0)


HIDDEN_LAYERS: list[tuple[Callable[[Tensor], Tensor], ObstacleKind, str]] = [
    (_Rounding.apply, ObstacleKind.CUSTOM_BACKWARD, "calls _Rounding"),
    (_WithoutBackward.apply, ObstacleKind.CUSTOM_BACKWARD, "calls _WithoutBackward"),
    (lambda h: _WithRange.apply(h, 0.2)[0], ObstacleKind.CUSTOM_BACKWARD, "calls _WithRange"),
    (_InNumpy.apply, ObstacleKind.CUSTOM_BACKWARD, "calls _InNumpy"),
    (lambda h: _RoundedInPlace.apply(1 * h), ObstacleKind.CUSTOM_BACKWARD, "calls _RoundedInPlace"),
    (lambda h: torch.from_numpy((5 * h.detach().numpy()).round() / 5), ObstacleKind.OUTSIDE_THE_GRAPH, "leaves torch"),
    (lambda h: checkpoint(lambda v: (5 * v).round() / 5, h, use_reentrant=True), ObstacleKind.ROUNDING, "rounds"),
    (lambda h: checkpoint(lambda v: (5 * v).round() / 5, h, use_reentrant=False), ObstacleKind.ROUNDING, "rounds"),
    (lambda h: torch.copysign(torch.ones_like(h), h), ObstacleKind.SATURATION, "applies copysign, whose derivative is"),
    (_step_by_quotient, ObstacleKind.SATURATION, "applies div, whose derivative is zero"),
    (lambda h: torch.erf(1e6 * h), ObstacleKind.SATURATION, "most values of its erf are at an end"),
    (lambda h: ((5 * h).int() @ torch.eye(32).int()) / 5, ObstacleKind.INTEGER_CAST, "casts to integers"),
    (_losers_set_to_zero, ObstacleKind.SELECTION, "keeps the k largest"),
    (_scripted, ObstacleKind.ROUNDING, "rounds"),
    (_without_low_bits, ObstacleKind.INTEGER_CAST, "casts to integers"),
    (_with_spoilt_memory, ObstacleKind.GRADIENT_HOOK, "registers a hook"),
    (_filled_below, ObstacleKind.COMPARISON, "compares with thresholds"),
]


@pytest.mark.parametrize(("function", "kind", "evidence"), HIDDEN_LAYERS)
def test_a_hidden_layer_without_a_gradient_is_named_and_replaced(
    function: Callable[[Tensor], Tensor], kind: ObstacleKind, evidence: str, digits_subject: Subject
) -> None:
    """The derivative leads as that of the perceptron without the layer does; the logits stay, bit for bit."""
    model, x = _perceptron_with(_Fifths(function)), digits_subject.dataset.inputs[:16]
    diagnosis = _diagnosed(model, digits_subject)
    assert any(evidence in o.sentence for o in diagnosis.obstacles if o.kind is kind), diagnosis.obstacles
    remedies = remedies_for(diagnosis, 0.1, may_rewrite=True)
    remedy, gradients = next(r for r in remedies if r.name == "straight-through surrogates"), []
    for network in (_perceptron_with(nn.Identity()), Remedied(model, remedy)):
        point = x.clone().requires_grad_()
        logits = network(point)
        gradients.append(torch.autograd.grad(logits[:, 3].sum(), point)[0].flatten())
    assert torch.equal(logits, model(x))
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.6


def test_votes_that_are_integers_have_a_gradient(digits_subject: Subject) -> None:
    """A model may return counts: they are attacked as floats, with the gradient of the members."""
    member = masks.Around(digits_subject.classifier.module, after=lambda z: nn.functional.one_hot(z.argmax(1), 10))
    point = digits_subject.dataset.inputs[:4].clone().requires_grad_()
    for remedy in (GradientRemedy("own"), GradientRemedy("straight-through", operations=True)):
        logits = Remedied(member, remedy)(point)
        assert torch.equal(logits, member(point).float())
        (gradient,) = torch.autograd.grad(logits[:, 3].sum(), point)
    assert bool((gradient.flatten(1).abs().amax(1) > 0).all())


def _mode_of_views(z: Tensor) -> Tensor:
    votes = torch.stack([part.argmax(1) for part in (z, 0.9 * z, 1.1 * z)])
    return votes.mode(0).values.unsqueeze(1).eq(torch.arange(z.shape[1])).float()


def _median_of_views(z: Tensor) -> Tensor:
    votes = torch.stack([part.argmax(1) for part in (z, 0.9 * z, 1.1 * z)])
    return nn.functional.one_hot(votes.median(0).values, z.shape[1]).float()


def _is_largest(z: Tensor) -> Tensor:
    return (z == z.amax(1, keepdim=True)).float()


def _vote(z: Tensor) -> Tensor:
    return torch.zeros_like(z).scatter_add_(1, z.argmax(1, keepdim=True), torch.ones(len(z), 1))


def _counted(z: Tensor) -> Tensor:
    votes = torch.stack([part.argmax(1) for part in (z, 0.9 * z, 1.1 * z)])
    return torch.stack([torch.bincount(row, minlength=10) for row in votes.T]).float()


def _added(z: Tensor) -> Tensor:
    """Count in floats, element by element, in integers, row by row, and by a mask."""
    votes, counts, rows = torch.zeros_like(z), torch.zeros(len(z), 10, dtype=torch.int64), torch.arange(len(z))
    is_chosen = counts > 0
    for i, label in enumerate(z.argmax(1)):
        votes[i, label] += 1
    counts[rows, (0.9 * z).argmax(1)] += 1
    is_chosen[rows, (1.1 * z).argmax(1)] = True
    return votes + counts + is_chosen.float()


def _taken(z: Tensor) -> Tensor:
    return nn.functional.one_hot(torch.arange(10).take(z.argmax(1)), 10).float()


def _compared(z: Tensor) -> Tensor:
    labels = torch.stack([part.max(1).indices for part in (z, 0.9 * z)], 1)
    return (labels[:, :, None] == torch.arange(10)).sum(1).float()


def _label_of_the_nearest(z: Tensor) -> Tensor:
    """Two prototypes of each class, of which the second is always further away."""
    labels = torch.arange(10).repeat(2)
    return nn.functional.one_hot(labels[torch.cat([-z, 1 - z], 1).argmin(1)], 10).float()


@pytest.mark.parametrize(
    "after",
    [
        *(
            _mode_of_views,
            _median_of_views,
            _is_largest,
            _vote,
            _counted,
            _added,
            _taken,
            _compared,
            _label_of_the_nearest,
        ),
        lambda z: torch.eye(10)[z.argmax(1)],
    ],
)
def test_a_class_that_is_compared_has_a_gradient(after: Callable[[Tensor], Tensor], digits_subject: Subject) -> None:
    """It leads where the logit of the class grows: the commonest of several answers, and the one that equals the largest."""
    inner, x = digits_subject.classifier.module, digits_subject.dataset.inputs[:16]
    remedied = Remedied(masks.Around(inner, after=after), GradientRemedy("straight-through", operations=True))
    gradients = []
    for model in (masks.Around(inner, after=lambda z: (z / 5).softmax(1)), remedied):
        point = x.clone().requires_grad_()
        logits = model(point)
        loss = SOFTMAX.loss(logits, digits_subject.dataset.targets[:16])
        gradients.append(torch.autograd.grad(loss.sum(), point)[0].flatten())
    assert torch.equal(logits, after(inner(x)))
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.5


def test_the_identity_stands_for_preprocessing_that_resizes_outside_of_torch(digits_subject: Subject) -> None:
    """The derivative is that of the enlarged input."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10))
    outside = masks.Around(inner, before=lambda x: torch.from_numpy(x.detach().numpy().repeat(2, 2).repeat(2, 3)))
    inside = masks.Around(inner, before=lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    remedies = remedies_for(_diagnosed(outside, digits_subject), 0.1, may_rewrite=True)
    remedy, gradients = next(r for r in remedies if r.enters_at is not None), []
    for model in (inside, Remedied(outside, remedy)):
        point = digits_subject.dataset.inputs[:6].clone().requires_grad_()
        gradients.append(torch.autograd.grad(model(point)[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.8


@pytest.mark.parametrize("function", [lambda h: torch.copysign(torch.ones_like(h), h), _step_by_quotient])
def test_a_step_by_other_means_than_the_sign_is_smooth(
    function: Callable[[Tensor], Tensor], digits_subject: Subject
) -> None:
    """What is near the step moves the most, as under the surrogate of the sign."""
    x, gradients = digits_subject.dataset.inputs[:16], []
    for layer in (Sign(), _Fifths(function)):
        model = _perceptron_with(layer)
        remedies = remedies_for(_diagnosed(model, digits_subject), 0.1, may_rewrite=True)
        point = x.clone().requires_grad_()
        logits = Remedied(model, next(r for r in remedies if r.name == "straight-through surrogates"))(point)
        gradients.append(torch.autograd.grad(logits[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.99


class _Purified(nn.Module):
    """Moves a parameter that it makes of the input, by an optimiser of torch, before it answers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = nn.Parameter(x.detach().clone())
            optimiser = torch.optim.Adam([point], lr=0.01)
            for _ in range(2):
                optimiser.zero_grad()
                self.inner(point).logsumexp(1).sum().backward()
                optimiser.step()
        return self.inner(point.detach().clamp(0, 1))


def _without_detach(x: Tensor) -> Tensor:
    return torch.from_numpy((5 * x.numpy()).round() / 5)


class _MovedFromZero(nn.Module):
    """Takes a step from a perturbation of zero, which it makes a leaf again, before it answers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = torch.zeros_like(x).requires_grad_()
            for _ in range(2):
                (gradient,) = torch.autograd.grad(self.inner(x.detach() + moved).logsumexp(1).sum(), moved)
                moved = (moved - 0.01 * gradient.sign()).detach().requires_grad_()
        return self.inner(x.detach() + moved.detach())


def test_no_remedy_fails_on_a_search_that_starts_at_zero(digits_subject: Subject) -> None:
    """The first sum, of a perturbation that does not vary, is not taken for an operation without a derivative."""
    model = _MovedFromZero(digits_subject.classifier.module)
    diagnosis, point = _diagnosed(model, digits_subject), digits_subject.dataset.inputs[:4].clone().requires_grad_()
    for remedy in remedies_for(diagnosis, 0.1, may_rewrite=True):
        (gradient,) = torch.autograd.grad(Remedied(model, remedy)(point)[:, 3].sum(), point)
        assert bool((gradient.flatten(1) != 0).any(1).all()), remedy.name


def _blended_without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        for _ in range(2):
            x = 0.5 * x + 0.5 * x.roll(1, -1).floor()
        return x


@pytest.mark.parametrize("make", [_Purified, _in_front(_without_detach), _in_front(_blended_without_graph)])
def test_preprocessing_that_gradients_cannot_enter_is_taken_for_the_identity(
    make: Make, digits_subject: Subject
) -> None:
    """An optimiser refuses what is no leaf, and numpy what has a gradient: neither stops the attack."""
    inner, x = digits_subject.classifier.module, digits_subject.dataset.inputs[:8]
    diagnosis, best = _diagnosed(make(inner).eval(), digits_subject), 0.0
    for remedy in remedies_for(diagnosis, 0.1, may_rewrite=True):
        gradients = []
        with suppress(ValueError):
            for network in (inner, Remedied(make(inner).eval(), remedy)):
                point = x.clone().requires_grad_()
                gradients.append(torch.autograd.grad(network(point)[:, 3].sum(), point)[0].flatten())
            best = max(best, float(nn.functional.cosine_similarity(*gradients, dim=0)))
    assert diagnosis.is_cut
    assert best > 0.8
    cut = Remedied(make(inner).eval(), GradientRemedy("no gradient", is_cut=True))
    assert torch.equal(cut(x.clone().requires_grad_()), make(inner).eval()(x))


@pytest.mark.parametrize("draw", [lambda x: torch.normal(x, 0.1), torch.bernoulli, lambda x: torch.poisson(20 * x)])
def test_a_draw_whose_mean_is_the_input_has_a_gradient(
    draw: Callable[[Tensor], Tensor], digits_subject: Subject
) -> None:
    """Torch's own derivative of it is zero."""
    model = masks.Around(digits_subject.classifier.module, before=draw)
    diagnosis = _diagnosed(model, digits_subject)
    assert any("whose derivative is zero" in obstacle.sentence for obstacle in diagnosis.obstacles)
    remedies = remedies_for(diagnosis, 0.1, may_rewrite=True)
    point = digits_subject.dataset.inputs[:8].clone().requires_grad_()
    logits = Remedied(model, next(r for r in remedies if r.name == "straight-through surrogates"))(point)
    (gradient,) = torch.autograd.grad(logits[:, 3].sum(), point)
    assert bool((gradient.flatten(1) != 0).any(1).all())


class _Hiding(nn.Module):
    """Answers by a constant where it is attacked by gradients."""

    def __init__(self, inner: nn.Module, is_attacked: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.inner, self.is_attacked = inner, is_attacked

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(0.1 * x if self.is_attacked(x) else x)


@pytest.mark.parametrize("is_attacked", [lambda _: torch.is_grad_enabled(), lambda x: x.requires_grad])
def test_a_model_that_looks_for_gradients_gives_its_own(
    is_attacked: Callable[[Tensor], bool], digits_subject: Subject
) -> None:
    inner, x = digits_subject.classifier.module, digits_subject.dataset.inputs[:8]
    model = _Hiding(inner, is_attacked)
    diagnosis = _diagnosed(model, digits_subject)
    assert any(obstacle.kind is ObstacleKind.GRADIENT_AWARE for obstacle in diagnosis.obstacles)
    remedies = remedies_for(diagnosis, 0.1, may_rewrite=True)
    remedy, gradients = next(r for r in remedies if r.name == "straight-through surrogates"), []
    for network in (inner, Remedied(model, remedy)):
        point = x.clone().requires_grad_()
        logits = network(point)
        gradients.append(torch.autograd.grad(logits[:, 3].sum(), point)[0].flatten())
    assert torch.equal(logits, inner(x))
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.999


def test_the_operations_of_a_compiled_model_are_named(digits_subject: Subject) -> None:
    """Torch compiles it whole, a container too, which has no length then."""
    compiled = torch.compile(nn.Sequential(masks.bit_depth(digits_subject.classifier.module)), backend="eager")
    diagnosis = _diagnosed(compiled, digits_subject)
    assert any("rounds to 8 levels" in obstacle.sentence for obstacle in diagnosis.obstacles)
    remedy = next(r for r in remedies_for(diagnosis, 0.1, may_rewrite=True) if r.operations)
    point = digits_subject.dataset.inputs[:4].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Remedied(compiled, remedy)(point)[:, 3].sum(), point)
    assert bool((gradient.flatten(1) != 0).any(1).all())


@torch.library.custom_op("tests::mirrored", mutates_args=())
def _mirrored(x: Tensor) -> Tensor:
    """Copies, with a gradient of the wrong sign."""
    return x.clone()


_mirrored.register_autograd(lambda _, gradient: -gradient)


def test_an_operator_with_a_backward_of_its_own_is_taken_for_the_identity(digits_subject: Subject) -> None:
    inner = digits_subject.classifier.module
    remedies = remedies_for(_diagnosed(masks.Around(inner, before=_mirrored), digits_subject), 0.1, may_rewrite=True)
    remedy, gradients = next(r for r in remedies if r.identity_at is not None), []
    for network in (inner, Remedied(masks.Around(inner, before=_mirrored), remedy)):
        point = digits_subject.dataset.inputs[:6].clone().requires_grad_()
        gradients.append(torch.autograd.grad(network(point)[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.8


def test_surrogates_follow_a_model_whose_branches_are_drawn(digits_subject: Subject) -> None:
    """The call at a position may have another type from one draw to the next."""

    def branch(x: Tensor) -> Tensor:
        is_dark = torch.rand(()) < 0.5
        return 1.0 * x if is_dark else x * (x > 0.1)

    x = digits_subject.dataset.inputs[:4]
    for remedy in (GradientRemedy("identity", identity_at=at) for at in range(3)):
        remedied = Remedied(masks.Around(digits_subject.classifier.module, before=branch), remedy)
        with seeded(0):
            assert all(remedied(x.clone().requires_grad_()).isfinite().all() for _ in range(8))


def test_a_gradient_is_measured_by_queries(digits_subject: Subject) -> None:
    """With as many directions as the input has elements it is the derivative."""
    network, x = digits_subject.classifier.module, digits_subject.dataset.inputs[:4]
    x = 0.1 + 0.8 * x  # inside of the range, which the queries do not leave
    gradients = []
    for model in (network, Remedied(network, GradientRemedy("measured", noise=1e-3, directions=64))):
        point = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(model(point)[:, 3].sum(), point)[0].flatten())
    assert float(nn.functional.cosine_similarity(*gradients, dim=0)) > 0.98


def _hidden(make: Make, subject: Subject, n: int) -> Subject:
    assessed = subject.dataset.subset(torch.arange(n))
    return subject_of(classifier_of(make(subject.classifier.module), 10, (1, 8, 8)), assessed)


def _attacked(hidden: Subject, **params: object) -> AssessmentResult:
    entry = AttackEntry(library="windtunnel", algorithm="adaptive", params=params)
    return attacks.assess("it", entry, BUDGET, hidden)


@pytest.fixture
def cheap_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short attack in place of the four of standard."""
    members = (Member("torchattacks", "APGD", {"steps": 10, "loss": "ce"}, "APGD-CE"),)
    for profile in ("standard", "adaptive"):
        monkeypatch.setitem(PROFILES, profile, {Norm.LINF: members})


@pytest.mark.usefixtures("cheap_standard")
def test_adaptive_is_standard_where_nothing_hides(digits_subject: Subject) -> None:
    """The same bytes, at the cost of the diagnosis."""
    data = digits_subject.dataset.subset(torch.arange(24))
    subject = subject_of(digits_subject.classifier, data)
    results = [
        attacks.assess("it", AttackEntry(library="windtunnel", algorithm=algorithm), BUDGET, subject)
        for algorithm in ("standard", "adaptive")
    ]
    for key in ("verdicts", "perturbed_inputs", "broken_by"):
        assert torch.equal(*(result.data[key] for result in results))
    assert "nothing was found that hides gradients" in str(results[1].kwargs["adaptive"]["sentence"])


def test_a_remedy_under_which_no_gradient_passes_is_left_out(digits_subject: Subject) -> None:
    """The mean over noise of a graph that is cut is zero; a surrogate of the cut is not."""
    attack = SimpleNamespace(model=masks.no_gradient(digits_subject.classifier.module), subject=digits_subject)
    remedies = (GradientRemedy("noise", noise=0.1, draws=2), GradientRemedy("surrogate", operations=True))
    assert [adapt._error_under(attack, r, torch.arange(4)) for r in remedies] == ["no gradient passes", ""]


@pytest.mark.usefixtures("cheap_standard")
def test_large_logits_alone_are_attacked_for_a_share_of_the_passes_of_standard(digits_subject: Subject) -> None:
    """Honest models have them too: a short search, and no long attack on the rest."""
    hidden = _hidden(lambda inner: masks.Around(inner, after=lambda z: 10 * z), digits_subject, 6)
    result = _attacked(hidden)
    assert [o["kind"] for o in result.kwargs["adaptive"]["obstacles"]] == ["large_logits"]
    assert not any("100 steps" in run for run in result.kwargs["runs"])
    assert any("100 steps" in name for name in result.kwargs["adaptive"]["left_out"])
    assert "large logits" in next(c.text for c in result.caveats if c.code == "adapting_cut")
    whole = _attacked(hidden, passes=1000)
    assert any("100 steps" in run for run in whole.kwargs["runs"])
    assert "left_out" not in whole.kwargs["adaptive"]


def test_a_search_for_late_state_leaves_the_copy_as_it_was(digits_subject: Subject) -> None:
    """The model is restored from this copy."""
    model = LateSwitch(digits_subject.classifier.module, digits_subject.classifier.module, 14)
    hidden = _hidden(lambda _: model, digits_subject, 6)
    untouched = nn.ModuleList([copy.deepcopy(model)] * 2)
    attack = SimpleNamespace(subject=hidden, runs=[None])
    adapt._with_late_state(Diagnosis(()), attack, untouched)
    assert untouched[1].calls == model.calls - 1


@pytest.mark.usefixtures("cheap_standard")
def test_adaptive_breaks_a_rounding_network_and_says_how(digits_subject: Subject, tmp_path: Path) -> None:
    """Every example is of the model itself, each names the configuration that found it, and the report says so first."""
    hidden = _hidden(masks.bit_depth, digits_subject, 6)
    result = _attacked(hidden, passes=300)
    record, runs = result.kwargs["adaptive"], result.kwargs["runs"]
    assert record["accuracy_after"] < record["accuracy_before"]
    assert result.metrics["adversarial_accuracy"] == pytest.approx(record["accuracy_after"])
    assert "rounds to 8 levels" in record["sentence"]
    broken = result.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert record["winner"] in {runs[i] for i in result.data["broken_by"][broken].tolist()}
    with torch.no_grad():
        predictions = masks.bit_depth(digits_subject.classifier.module)(result.data["perturbed_inputs"][broken]).argmax(
            1
        )
    assert bool((predictions != result.data["targets"][broken]).all())
    stored = write_artifacts(result, tmp_path / "it", hidden, started=0.0)
    assert [line for line, _ in front._adapted(SimpleNamespace(assessments=[stored]))] == [f"it: {record['sentence']}"]
    _, table, advice = obstacle_tables(stored)
    assert table.rows[0][0] == "rounding"
    assert record["lines"]["adapt"] in advice.text
    plain, through = (
        attacks.assess("it", AttackEntry(library="torchattacks", algorithm="FGSM", **lines), BUDGET, hidden).metrics
        for lines in ({}, record["lines"])
    )
    assert through["adversarial_accuracy"] < plain["adversarial_accuracy"]


def test_params_are_checked_before_anything_runs(digits_subject: Subject) -> None:
    def check(**keys: object) -> None:
        entry = AttackEntry(library="windtunnel", algorithm="adaptive", **keys)
        preflight("attacks.it", entry, BUDGET, digits_subject.classifier, digits_subject.dataset)

    check(params={"passes": 100})
    with pytest.raises(UserError, match=r"params\.standard: false leaves the attacks of standard out"):
        check(params={"standard": False})
    with pytest.raises(UserError, match=r"did you mean 'passes'|passes"):
        check(params={"pases": 100})
    with pytest.raises(UserError, match="remove it"):
        check(target_classes=1)


def test_the_number_of_a_random_model_is_of_fresh_draws(digits_subject: Subject) -> None:
    """Accuracy and interval are those of the stored examples under draws that the search did not see."""
    with seeded(0):
        hidden = _hidden(lambda inner: masks.noisy(inner, 0.5), digits_subject, 24)
    entry = AttackEntry(library="torchattacks", algorithm="Square", budget={"epsilon": 0.03, "steps": 200})
    result = attacks.assess("it", entry, BUDGET, hidden)
    metrics, inputs = result.metrics, result.data["perturbed_inputs"]
    with torch.no_grad():
        draws = [hidden.classifier.module(inputs).argmax(1) == hidden.dataset.targets for _ in range(200)]
    expected = (torch.stack(draws) & hidden.clean_correct).double().mean()
    four_standard_errors = 4 * math.sqrt(0.25 / (24 * 15))  # of 24 samples under 15 draws
    assert metrics["fresh_accuracy"] == pytest.approx(float(expected), abs=four_standard_errors)
    assert metrics["fresh_accuracy_ci_low"] <= float(expected) <= metrics["fresh_accuracy_ci_high"]
    assert any(caveat.code == "fresh_draws" for caveat in result.caveats)


def test_fresh_draws_count_no_example_beyond_the_budget(digits_subject: Subject) -> None:
    """A minimum-norm attack stores examples at any distance; within a budget of nothing the clean accuracy stays."""
    with seeded(0):
        hidden = _hidden(lambda inner: masks.noisy(inner, 0.05), digits_subject, 24)
    entry = AttackEntry(library="torchattacks", algorithm="FAB", budget={"epsilon": 1e-6}, params={"steps": 10})
    result = attacks.assess("it", entry, BUDGET, hidden)
    assert float(result.data["perturbation_distance"].max()) > 0.01
    assert result.metrics["fresh_accuracy"] == pytest.approx(float(hidden.clean_correct.double().mean()), abs=0.1)


@pytest.mark.usefixtures("cheap_standard")
def test_examples_of_lucky_draws_are_attacked_further(digits_subject: Subject) -> None:
    """Fresh draws of the adapted examples are wrong more often than those of standard, and no stored verdict contradicts its logits."""
    with seeded(0):
        make = lambda inner: masks.Around(inner, before=lambda x: nn.functional.dropout(x, 0.4, training=True))  # noqa: E731
        hidden = _hidden(make, digits_subject, 16)
    standard, adaptive = (
        attacks.assess("it", AttackEntry(library="windtunnel", algorithm=name, params=params), BUDGET, hidden)
        for name, params in (("standard", {}), ("adaptive", {"passes": 1500}))
    )
    assert adaptive.metrics["fresh_accuracy"] < standard.metrics["fresh_accuracy"]
    assert adaptive.metrics["adversarial_accuracy"] <= standard.metrics["adversarial_accuracy"]
    broken = adaptive.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert bool((adaptive.data["perturbed_predictions"][broken] != adaptive.data["targets"][broken]).all())


@pytest.mark.usefixtures("cheap_standard")
def test_every_example_of_a_random_model_moves(digits_subject: Subject) -> None:
    """Attacks that return the clean input where no draw of theirs was wrong would leave samples that fresh draws break."""
    with seeded(0):
        hidden = _hidden(lambda inner: masks.noisy(inner, 0.15), digits_subject, 12)
    result = _attacked(hidden, passes=500)
    changes = (result.data["perturbed_inputs"] - result.data["clean_inputs"]).abs().flatten(1).amax(1)
    assert bool((changes[result.data["attacked"]] > 0.05).all())


@pytest.mark.usefixtures("cheap_standard")
def test_state_that_standard_left_behind_hides_nothing(digits_subject: Subject) -> None:
    """A model that answers otherwise after some calls is attacked as it was before the first."""
    record = _attacked(_hidden(masks.CountsCalls, digits_subject, 6), passes=200).kwargs["adaptive"]
    assert record["accuracy_after"] < record["accuracy_before"]
    assert "a fresh copy for each call" in record["winner"]


@pytest.mark.usefixtures("cheap_standard")
def test_a_cache_of_queries_protects_no_sample(digits_subject: Subject) -> None:
    """Whoever asks about the example alone gets the answer of the network behind the cache: neither search nor clean samples are in it."""
    bare, cached = (_hidden(make, digits_subject, 6) for make in (lambda inner: inner, _cached))
    broken = [_attacked(subject, passes=200).data["verdicts"] == Verdict.ATTACK_SUCCEEDED for subject in (bare, cached)]
    assert bool(broken[0].any())
    assert bool((broken[1] | ~broken[0]).all())


@pytest.mark.usefixtures("cheap_standard")
def test_state_after_more_calls_than_the_diagnosis_makes_is_named(
    digits_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is compared with a copy from before the attacks of standard."""
    monkeypatch.setattr(obstacles, "CALLS", 4)
    late = LateSwitch(digits_subject.classifier.module, masks.argmax_inside(digits_subject.classifier.module), 13)
    record = _attacked(_hidden(lambda _: late, digits_subject, 6), passes=50).kwargs["adaptive"]
    assert record["obstacles"][0]["evidence"].startswith("answers change after the attacks of standard")


@pytest.mark.usefixtures("cheap_standard")
def test_a_top_k_head_is_attacked_too(digits_subject: Subject) -> None:
    """Samples are broken by the criterion of the head: their label is not among the two largest logits."""
    hidden = _hidden(masks.bit_depth, digits_subject, 12)
    hidden = subject_of(replace(hidden.classifier, criterion=Criterion("top_k", 2)), hidden.dataset)
    entry = AttackEntry(library="windtunnel", algorithm="adaptive", budget={"epsilon": 0.3}, params={"passes": 400})
    preflight("attacks.it", entry, BUDGET, hidden.classifier, hidden.dataset)
    result = attacks.assess("it", entry, BUDGET, hidden)
    assert result.kwargs["adaptive"]["winner"]
    for i in (result.data["verdicts"] == Verdict.ATTACK_SUCCEEDED).nonzero().flatten().tolist():
        assert int(result.data["targets"][i]) not in result.data["perturbed_logits"][i].topk(2).indices.tolist()


def test_a_deterministic_model_has_no_fresh_draws(digits_subject: Subject) -> None:
    """Its metrics and caveats stay as they were."""
    subject = subject_of(digits_subject.classifier, digits_subject.dataset.subset(torch.arange(8)))
    result = attacks.assess("it", AttackEntry(library="torchattacks", algorithm="FGSM"), BUDGET, subject)
    assert "fresh_accuracy" not in result.metrics


@pytest.mark.parametrize(("noise", "calls"), [(0.0, [8, *[1] * 12]), (0.5, [8, 8])])
def test_whether_a_model_draws_is_asked_with_few_passes(
    digits_subject: Subject, noise: float, calls: list[int]
) -> None:
    with seeded(0):
        hidden = _hidden(lambda inner: masks.noisy(inner, noise), digits_subject, 24)
    seen: list[int] = []
    hook = hidden.classifier.module.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    assert is_random(hidden) is bool(noise)
    hook.remove()
    assert seen == calls


def test_a_model_that_draws_for_some_samples_alone_is_random(digits_subject: Subject) -> None:
    """As one does that adds noise to what it takes for an attack."""
    inputs = digits_subject.dataset.inputs[:8]
    brightest = inputs.flatten(1).sum(1).max() - 1e-3

    def noisy_where_bright(x: Tensor) -> Tensor:
        is_bright = (x.flatten(1).sum(1) >= brightest).view(-1, 1, 1, 1)
        return x + is_bright * torch.rand_like(x)

    assert is_random(_hidden(_in_front(noisy_where_bright), digits_subject, 16))


def _mirrored_by_chance(x: Tensor) -> Tensor:
    """Mirror the whole batch, or leave it, with Python's own generator."""
    return x.flip(-1) if random.random() < 0.5 else x


def test_a_choice_of_two_for_the_whole_batch_is_random(digits_subject: Subject) -> None:
    """Two calls are often the same; it is no state between calls, and its number is of fresh draws."""
    hidden = _hidden(_in_front(_mirrored_by_chance), digits_subject, 12)
    kinds = [obstacle.kind for obstacle in _diagnosed(hidden.classifier.module, hidden).obstacles]
    assert ObstacleKind.RANDOM in kinds
    assert ObstacleKind.STATE not in kinds
    assert all(is_random(replace(hidden, seed=seed)) for seed in range(6))


@pytest.mark.usefixtures("cheap_standard")
def test_adaptive_alone_on_an_honest_model_breaks_nothing(digits_subject: Subject) -> None:
    """Without the attacks of standard and without an obstacle there is no run at all."""
    subject = subject_of(digits_subject.classifier, digits_subject.dataset.subset(torch.arange(8)))
    entry = AttackEntry(library="windtunnel", algorithm="adaptive", params={"standard": False})
    result = attacks.assess("it", entry, BUDGET, subject)
    assert result.kwargs["runs"] == []
    assert result.metrics["n_succeeded"] == 0


class Elsewhere(nn.Module):
    """Computes outside of torch's graph, as a session of another runtime."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.run: Callable[[Tensor], Tensor] = inner.forward

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad(), torch._C.DisableTorchFunction():  # calls of torch that no mode sees
            return torch.from_numpy(self.run(torch.from_numpy(x.detach().numpy())).numpy())


@pytest.mark.usefixtures("cheap_standard")
def test_a_model_without_gradients_is_attacked_by_queries(
    digits_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run takes its gradient, and the report says that it has none; the student is as good as one can be."""
    monkeypatch.setattr(adapt, "distilled", lambda *_: digits_subject.classifier.module)
    hidden = _hidden(Elsewhere, digits_subject, 6)
    blind = replace(hidden, classifier=replace(hidden.classifier, capabilities=frozenset({Capability.FORWARD})))
    preflight(
        "attacks.it", AttackEntry(library="windtunnel", algorithm="adaptive"), BUDGET, blind.classifier, blind.dataset
    )
    result = _attacked(blind, passes=1500)
    (obstacle,) = result.kwargs["adaptive"]["obstacles"]
    assert "torch does not compute the logits" in obstacle["evidence"]
    assert any("student" in run for run in result.kwargs["runs"])
    assert result.semantics.algorithm.threat_model is ThreatModel.BLACK_BOX_SCORE
    assert result.metrics["n_succeeded"] > 0


@pytest.mark.usefixtures("cheap_standard")
def test_a_model_that_normalises_over_its_batch_is_broken_in_any_batch(digits_subject: Subject) -> None:
    """What is counted as broken is wrong beside other samples too: all together, and each half among clean samples."""
    with seeded(0):
        hidden = _hidden(lambda inner: nn.Sequential(_StuckNorm(1), inner), digits_subject, 16)
    standard = attacks.assess("it", AttackEntry(library="windtunnel", algorithm="standard"), BUDGET, hidden)
    adaptive = _attacked(hidden, passes=1500)
    assert _right_in_batches(hidden, adaptive) < _right_in_batches(hidden, standard) - 0.1
    assert any("over batches" in run for run in adaptive.kwargs["runs"])
    assert adaptive.metrics["adversarial_accuracy"] <= standard.metrics["adversarial_accuracy"]


def _right_in_batches(subject: Subject, result: AssessmentResult) -> float:
    examples, clean, labels = result.data["perturbed_inputs"], subject.dataset.inputs, subject.dataset.targets
    halves = torch.arange(len(clean)) % 2 == 0
    batches = [
        (examples, halves | True),
        *((torch.where(h.view(-1, 1, 1, 1), examples, clean), h) for h in (halves, ~halves)),
    ]
    right = [
        (subject.classifier.predict(batch) == labels)[chosen] & subject.clean_correct[chosen]
        for batch, chosen in batches
    ]
    return float(torch.cat(right).double().mean())


@pytest.mark.usefixtures("cheap_standard")
def test_no_boundary_is_walked_where_answers_change(digits_subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk starts from points that must stay misclassified, which those of another batch do not; the library raises."""
    monkeypatch.setattr(adapt, "STUDENT_ABOVE", -1.0)
    monkeypatch.setattr(adapt, "distilled", lambda *_: digits_subject.classifier.module)
    result = _attacked(_hidden(masks.BatchStatistics, digits_subject, 12))
    assert any("student" in run for run in result.kwargs["runs"])
    assert not any("boundary" in run for run in result.kwargs["runs"])


@pytest.mark.slow
def test_the_twin_of_the_int8_resnet8_breaks_what_square_breaks(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The obstacle is the deployed file, and PGD through the float twin takes a tenth of the queries of Square."""
    pytest.importorskip("ai_edge_litert")
    example = Path(__file__).parents[3] / "examples" / "resnet8-int8"
    monkeypatch.setenv("WINDTUNNEL_SHARED", str(shared.resolve()))
    shutil.copytree(example, tmp_path / "it")
    subprocess.run([sys.executable, "prepare.py", "--samples", "24"], cwd=tmp_path / "it", check=True)
    monkeypatch.chdir(tmp_path / "it" / "int8")
    monkeypatch.syspath_prepend(str(tmp_path / "it"))
    params = validate(YAML(typ="safe", pure=True).load(Path("params.yaml").read_text()))
    dataset, _ = load_dataset(params.data, 0)
    subject = subject_of(preview_classifier(params.model, dataset, None, "cpu"), dataset)
    (obstacle,) = [
        o for o in _diagnosed(subject.classifier.module, subject).obstacles if o.kind is ObstacleKind.OUTSIDE_THE_GRAPH
    ]
    assert "answers by a deployed file outside of torch, with the gradient of its twin" in obstacle.sentence
    broken, queries = [], []
    for algorithm, budget in (("PGD", {"steps": 10, "step_size": 1 / 1020}), ("Square", {"steps": 120})):
        entry = AttackEntry(library="torchattacks", algorithm=algorithm, budget=budget)
        result = attacks.assess("it", entry, Budget(norm=Norm.LINF, epsilon=2 / 255), subject)
        broken.append(result.data["broken_by"] >= 0)
        queries.append(float(result.data["forward_passes"][result.data["attacked"] & ~broken[-1]].mean()))
    assert int((broken[1] & ~broken[0]).sum()) == 0
    assert broken[0].sum() > broken[1].sum() > 0
    assert 10 * queries[0] <= queries[1]
