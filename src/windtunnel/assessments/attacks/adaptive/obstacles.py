"""Diagnose what stops or misleads the gradients of a model: obstacles with their evidence, from a trace and from measurements."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adaptive.operations import ForwardTrace, Operation, trace_of
from windtunnel.assessments.attacks.adaptive.surrogates import SATURATING
from windtunnel.assessments.attacks.fresh_draws import SAME, differs
from windtunnel.core.contracts import Json
from windtunnel.core.criterion import Criterion
from windtunnel.core.medians import median
from windtunnel.core.seeds import seeded

SAMPLES = 16  # of the diagnosis
FEW = 4  # samples of the test for state between calls
CALLS = 12  # of the same test
HAIR = 1e-3  # of the range: the step of numerical differences
TINY = 1e-5  # a change that no picture shows
NEAR_COPY = 0.5  # correlation with the input above which a tensor of its shape is a copy of it
MANY = 0.5  # share of elements or samples that makes a measurement an obstacle
LARGE_MARGIN, SMALL_MARGIN = 30.0, 1e-2  # of logits: cross entropy in float32 underflows above, and is flat below
MOST_DRAWS = 32  # of EOT
_CUT = "no gradient reaches the input: the graph is cut"


class ObstacleKind(StrEnum):
    """Ways in which a model keeps gradients from an attack."""

    ROUNDING = "rounding"
    SIGN = "sign"
    COMPARISON = "comparison"
    SELECTION = "selection"
    INTEGER_CAST = "integer_cast"
    DETACHED = "detached"
    OUTSIDE_THE_GRAPH = "outside_the_graph"
    CUSTOM_BACKWARD = "custom_backward"
    GRADIENT_HOOK = "gradient_hook"
    SATURATION = "saturation"
    ITERATION = "iteration"
    ZERO_GRADIENT = "zero_gradient"
    GRADIENT_NOT_FINITE = "gradient_not_finite"
    WRONG_GRADIENT = "wrong_gradient"
    LARGE_LOGITS = "large_logits"
    TINY_LOGITS = "tiny_logits"
    PROBABILITIES = "probabilities"
    RANDOM = "random"
    RESEEDED = "reseeded"
    STATE = "state"
    BATCH = "batch"
    DISCONTINUOUS = "discontinuous"
    WEAK_GRADIENT = "weak_gradient"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One obstacle: its kind, where it is (a module's qualified name; empty for the whole model), the operation, and the evidence."""

    kind: ObstacleKind
    sentence: str
    layer: str = ""
    operation: str = ""

    def record(self) -> dict[str, Json]:
        """Return it as it is written to metadata.json."""
        return {"kind": self.kind.value, "layer": self.layer, "operation": self.operation, "evidence": self.sentence}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Obstacles of a model, and what remedies need of it.

    identity_at: position of the last operation whose result is a near copy of the input. logits_at: of the first whose
    result names the same classes as the output. saturated: of operations that cut most of their elements. draws: of EOT.
    margin: median absolute margin of the logits. passes: forward passes that the diagnosis took, of one sample each.
    """

    obstacles: tuple[Obstacle, ...]
    identity_at: int | None = None
    logits_at: int | None = None
    saturated: frozenset[int] = frozenset()
    draws: int = 1
    margin: float = 1.0
    forwards: int = 0
    backwards: int = 0

    @property
    def is_cut(self) -> bool:
        """True if no gradient reaches the input, so that a library's attack would raise."""
        return any(obstacle.sentence.startswith(_CUT) for obstacle in self.obstacles)

    def has(self, *kinds: ObstacleKind) -> bool:
        """Return True if there is an obstacle of one of these kinds."""
        return any(obstacle.kind in kinds for obstacle in self.obstacles)


_OPERATIONS = {
    **dict.fromkeys(
        ("round", "floor", "ceil", "trunc", "floor_divide", "quantize_per_tensor", "quantize_per_channel"),
        ObstacleKind.ROUNDING,
    ),
    "sign": ObstacleKind.SIGN,
    "heaviside": ObstacleKind.SIGN,
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne", "bucketize", "searchsorted"), ObstacleKind.COMPARISON),
    **dict.fromkeys(("argmax", "argmin", "one_hot", "topk", "kthvalue"), ObstacleKind.SELECTION),
    **dict.fromkeys(("long", "int", "short", "byte", "char", "bool"), ObstacleKind.INTEGER_CAST),
    **dict.fromkeys(("detach", "data"), ObstacleKind.DETACHED),
    **dict.fromkeys(("numpy", "item", "tolist", "__array__"), ObstacleKind.OUTSIDE_THE_GRAPH),
    "grad": ObstacleKind.ITERATION,
}
_EFFECTS = {
    ObstacleKind.SIGN: "takes the sign: zero gradient",
    ObstacleKind.COMPARISON: "compares with thresholds: no gradient",
    ObstacleKind.INTEGER_CAST: "casts to integers: no gradient",
    ObstacleKind.DETACHED: "detaches from the graph: no gradient passes",
    ObstacleKind.OUTSIDE_THE_GRAPH: "leaves torch: no gradient passes",
    ObstacleKind.ITERATION: "takes gradient steps of its own at inference",
}


def diagnose(
    module: nn.Module, criterion: Criterion, inputs: Tensor, labels: Tensor, epsilon: float, seed: int
) -> Diagnosis:
    """Return the obstacles of a model at up to `SAMPLES` of its samples.

    Args:
        module: The model, logits (n, K) of inputs.
        criterion: Reading of its logits.
        inputs: float32 (n, C, H, W) in [0, 1], on the model's device.
        labels: int64 (n,), on the same device.
        epsilon: Size of a random change of the inputs, largest change of an element.
        seed: Of the global streams during the diagnosis.

    """
    with seeded(seed):
        return _Diagnosing(module, criterion, inputs[:SAMPLES], labels[:SAMPLES], epsilon).result()


class _Diagnosing:
    """The diagnosis of one model."""

    def __init__(self, module: nn.Module, criterion: Criterion, inputs: Tensor, labels: Tensor, epsilon: float) -> None:
        self.untouched = copied(module)
        self.module = copied(module) or module  # calls may leave state behind
        self.criterion, self.inputs, self.labels, self.epsilon = criterion, inputs, labels, epsilon
        self.forwards = self.backwards = 0

    def result(self) -> Diagnosis:
        """Return the diagnosis."""
        noisy = (self.inputs + self.epsilon * (2 * torch.rand_like(self.inputs) - 1)).clamp(0, 1)
        both = torch.cat([self.inputs, noisy])
        logits = self._logits(self.inputs)
        with seeded(0):  # torch.export and a model of another runtime trace to nothing
            trace = trace_of(self.module, both)
        self.forwards += len(both)
        obstacles, saturated = [*_of_operations(trace), *_of_hooks(self.module)], _saturated(trace)
        obstacles += [_saturation(trace, operation) for operation in saturated]
        is_random = list(self._randomness(logits, trace))
        obstacles += [*is_random, *self._logit_scale(logits), *self._gradients(trace, is_random=bool(is_random))]
        if not is_random:
            obstacles += [*self._state(), *self._batch(logits), *self._discontinuity(logits)]
        draws = self._draws() if is_random else 1
        return Diagnosis(
            tuple(dict.fromkeys(obstacles)),
            _near_copy(trace),
            _inner_logits(trace),
            frozenset(o.position for o in saturated),
            draws,
            _median_margin(self.criterion, logits, self.labels),
            self.forwards,
            self.backwards,
        )

    def _logits(self, inputs: Tensor, module: nn.Module | None = None) -> Tensor:
        self.forwards += len(inputs)
        with torch.no_grad():
            logits: Tensor = (module or self.module)(inputs)
        return logits.float()

    def _gradient(self, inputs: Tensor, margin: bool = True) -> Tensor | None:
        """Return the gradient of a loss, (n, ...); None where the graph is cut."""
        point = inputs.clone().requires_grad_()
        self.forwards, self.backwards = self.forwards + len(inputs), self.backwards + len(inputs)
        loss = self.criterion.margin_loss if margin else self.criterion.loss
        with torch.enable_grad():
            value = loss(self.module(point).float(), self.labels[: len(inputs)]).sum()
            if not value.requires_grad:
                return None
            (gradient,) = torch.autograd.grad(value, point, allow_unused=True)
        return gradient

    def _gradients(self, trace: ForwardTrace, *, is_random: bool) -> Iterator[Obstacle]:
        """Yield what measurements of the gradient say, by both losses and by numerical differences."""
        gradients = {
            name: self._gradient(self.inputs, margin=name == "the margin") for name in ("the margin", "cross entropy")
        }
        if all(gradient is None for gradient in gradients.values()):
            blind = (
                ""
                if trace.operations
                else ", and torch does not compute the logits: queries and a distilled student remain"
            )
            yield Obstacle(ObstacleKind.ZERO_GRADIENT, _CUT + blind)
            return
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            rows, of = gradient.flatten(1), f"of {len(gradient)} samples"
            if n := int((~rows.isfinite()).any(1).sum()):
                yield Obstacle(
                    ObstacleKind.GRADIENT_NOT_FINITE, f"the gradient of {name} is NaN or infinite at {n} {of}"
                )
            elif n := int((rows == 0).all(1).sum()):
                yield Obstacle(ObstacleKind.ZERO_GRADIENT, f"the gradient of {name} is zero at {n} {of}")
        gradient = gradients["the margin"]
        if gradient is None or is_random or not bool(gradient.isfinite().all()):
            return
        step = HAIR * gradient.sign()
        up, down = (self._logits(self.inputs + way * step) for way in (1, -1))
        rise = self.criterion.margin_loss(up, self.labels) - self.criterion.margin_loss(down, self.labels)
        predicted = 2 * HAIR * gradient.flatten(1).abs().sum(1)
        is_measured = torch.maximum(predicted, rise.abs()) > SAME * up.abs().amax(1)
        off = is_measured & ~((rise >= 0.5 * predicted) & (rise <= 2 * predicted))
        if int(off.sum()) > max(1, MANY / 2 * int(is_measured.sum())):
            falls = int((off & (rise < 0)).sum())
            more = f", and at {falls} it falls where the gradient says that it rises" if falls else ""
            yield Obstacle(
                ObstacleKind.WRONG_GRADIENT,
                f"at {int(off.sum())} of {int(is_measured.sum())} samples the margin changes by less than half or more than twice "
                f"what its gradient says{more}",
            )

    def _randomness(self, logits: Tensor, trace: ForwardTrace) -> Iterator[Obstacle]:
        """Yield randomness between two calls, and a generator that the model itself seeds."""
        again = self._logits(self.inputs)
        where = next(iter(trace.draws), ("", "", ""))
        if differs(again, logits):
            drawn = f" ({where[0]})" if where[0] else ""
            yield Obstacle(
                ObstacleKind.RANDOM,
                f"{_place(where[1], where[2])} draws at random{drawn}: two calls differ",
                where[1],
                where[0],
            )
        states = []
        for start in (1, 2):
            torch.manual_seed(start)
            self._logits(self.inputs[:1])
            states.append(torch.get_rng_state())
        if torch.equal(*states):
            yield Obstacle(
                ObstacleKind.RESEEDED,
                "the forward pass seeds torch's generator: every search draws the same",
                operation="manual_seed",
            )

    def _state(self) -> Iterator[Obstacle]:
        """Yield state that calls leave behind: a fresh copy and one that was used before answer differently."""
        copies = [copied(self.untouched) if self.untouched else None for _ in range(2)]
        fresh, used = copies
        if fresh is None or used is None:
            return
        few = self.inputs[:FEW]
        other = (few + 4 * HAIR).clamp(0, 1)
        for _ in range(CALLS):
            self._logits(few, used)
        if differs(self._logits(other, fresh), self._logits(other, used), 1e-5):
            yield Obstacle(
                ObstacleKind.STATE, f"answers change after {CALLS} calls: the model keeps state between calls"
            )

    def _batch(self, logits: Tensor) -> Iterator[Obstacle]:
        """Yield dependence of an answer on the samples beside it, or on their order."""
        if len(logits) < 2:
            return
        alone = self._logits(self.inputs[:1])
        turned = self._logits(self.inputs.flip(0)).flip(0)
        if differs(alone, logits[:1], 1e-3):
            yield Obstacle(
                ObstacleKind.BATCH, "a sample alone gets other logits than in a batch: the answer depends on the batch"
            )
        elif differs(turned, logits, 1e-3):
            yield Obstacle(ObstacleKind.BATCH, "the same samples in another order get other logits")

    def _discontinuity(self, logits: Tensor) -> Iterator[Obstacle]:
        """Yield answers that jump between two inputs that nobody can tell apart."""
        moved = self._logits((self.inputs + TINY * (2 * torch.rand_like(self.inputs) - 1)).clamp(0, 1))
        scale = logits.abs().amax(1).clamp(min=1e-12)
        change = ((moved - logits).abs().amax(1) / scale).mean()
        if float(change) > 0.05:
            yield Obstacle(
                ObstacleKind.DISCONTINUOUS,
                f"a change of {TINY:g} of the input changes the logits by {float(change):.0%}",
            )

    def _logit_scale(self, logits: Tensor) -> Iterator[Obstacle]:
        """Yield logits on which losses saturate or are flat."""
        margin = _median_margin(self.criterion, logits, self.labels)
        if bool(((logits >= 0).all() & ((logits.sum(1) - 1).abs() < 1e-4)).all()):
            yield Obstacle(
                ObstacleKind.PROBABILITIES,
                "the outputs are probabilities: the loss applies a second softmax",
                operation="softmax",
            )
        elif margin > LARGE_MARGIN:
            yield Obstacle(
                ObstacleKind.LARGE_LOGITS,
                f"the median margin of the logits is {margin:.3g}: the softmax is 0 or 1, and cross entropy has no gradient",
            )
        elif margin < SMALL_MARGIN:
            yield Obstacle(
                ObstacleKind.TINY_LOGITS, f"the median margin of the logits is {margin:.1g}: cross entropy is flat"
            )

    def _draws(self) -> int:
        """Return how many gradients to average: enough that the mean's error is about half of its size."""
        few = self.inputs[:FEW]
        gradients = [
            g.flatten(1) for _ in range(6) if (g := self._gradient(few)) is not None and bool(g.isfinite().all())
        ]
        if len(gradients) < 2:
            return 8
        stacked = torch.stack(gradients)
        noise, size = stacked.var(0).sum(1).mean(), stacked.mean(0).square().sum(1).mean()
        signal = (size - noise / len(gradients)).clamp(min=1e-12)
        return int((4 * noise / signal).clamp(4, MOST_DRAWS).ceil())


def copied(module: nn.Module | None) -> nn.Module | None:
    """Return a copy of a module; None of one that cannot be copied."""
    with suppress(Exception):  # a session, a lock or a handle inside, of whatever library
        return copy.deepcopy(module)
    return None


def _median_margin(criterion: Criterion, logits: Tensor, labels: Tensor) -> float:
    return median(criterion.margin(logits, labels).abs().nan_to_num(0.0, 1e30, 0.0).tolist()) or 0.0


def _place(layer: str, layer_class: str) -> str:
    return f"layer {layer} ({layer_class})" if layer else f"the forward pass of {layer_class}"


def _of_operations(trace: ForwardTrace) -> Iterator[Obstacle]:
    """Yield operations between input and output that have no derivative, or another than their own."""
    for operation in trace.operations:
        where = _place(operation.layer, operation.layer_class)
        if operation.function is not None:
            if _is_wrong(operation, trace):
                name = operation.function.__name__
                yield Obstacle(
                    ObstacleKind.CUSTOM_BACKWARD,
                    f"{where} calls {name}, whose backward pass is not the derivative of its forward pass",
                    operation.layer,
                    name,
                )
            continue
        kind = _kind_of(operation, trace)
        if kind is not None:
            yield Obstacle(kind, f"{where} {_effect(kind, operation, trace)}", operation.layer, operation.name)


def _kind_of(operation: Operation, trace: ForwardTrace) -> ObstacleKind | None:
    """Return the kind of obstacle that an operation is, or None."""
    sources, results = trace.values(operation)
    kind = _OPERATIONS.get(operation.name)
    if (
        operation.name in ("to", "type", "_to_copy")
        and sources[0].is_floating_point()
        and not results[0].is_floating_point()
    ):
        return ObstacleKind.INTEGER_CAST
    if (
        kind in (ObstacleKind.ROUNDING, ObstacleKind.INTEGER_CAST, ObstacleKind.DETACHED)
        and not sources[0].is_floating_point()
    ):
        return None
    return kind


def _effect(kind: ObstacleKind, operation: Operation, trace: ForwardTrace) -> str:
    """Return what an operation does, as the end of a sentence."""
    if kind is ObstacleKind.ROUNDING:
        levels = len(trace.values(operation)[1][0].detach().dequantize().float().unique())
        return f"rounds to {levels} levels: zero gradient" if levels <= 256 else "rounds: zero gradient"
    if kind is ObstacleKind.SELECTION:
        effects = {
            "argmax": "answers by the largest alone",
            "argmin": "answers by the smallest alone",
            "one_hot": "makes a one-hot code",
        }
        return f"{effects.get(operation.name, 'keeps the k largest')}: no gradient passes the choice"
    return _EFFECTS[kind]


def _is_wrong(operation: Operation, trace: ForwardTrace) -> bool:
    """Return True if the backward pass of a custom function disagrees with numerical differences of its forward pass."""
    sources, results = trace.values(operation)
    point = next((s.detach() for s in sources if s.is_floating_point()), None)
    assert operation.function is not None
    if point is None or not results or not results[0].is_floating_point():
        return True
    argument_at = next(
        i
        for i, argument in enumerate(operation.arguments)
        if isinstance(argument, Tensor) and argument.shape == point.shape
    )

    def call(value: Tensor) -> Tensor:
        arguments = tuple(value if i == argument_at else a for i, a in enumerate(operation.arguments))
        result = operation.function.apply(*arguments)  # type: ignore[union-attr]
        assert isinstance(result, Tensor)
        return result

    direction = torch.randn_like(point)
    step = HAIR * point.abs().mean().clamp(min=1e-6)
    with torch.enable_grad():
        leaf = point.clone().requires_grad_()
        result = call(leaf)
        weights = torch.randn_like(result)
        if not result.requires_grad:
            return True
        (gradient,) = torch.autograd.grad((result * weights).sum(), leaf, allow_unused=True)
    if gradient is None:
        return True
    with torch.no_grad():
        rise = ((call(point + step * direction) - call(point - step * direction)) * weights).sum() / (2 * step)
    says = (gradient * direction).sum()
    return bool((rise - says).abs() > 0.5 * torch.maximum(rise.abs(), says.abs()))


def _of_hooks(module: nn.Module) -> Iterator[Obstacle]:
    """Yield modules that change gradients by hooks."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            where = _place(name, type(part).__name__)
            yield Obstacle(
                ObstacleKind.GRADIENT_HOOK, f"{where} has a hook that may change its gradient", name, "backward hook"
            )


def _saturated(trace: ForwardTrace) -> list[Operation]:
    """Return operations that cut or flatten most of their elements."""
    saturated = []
    for operation in trace.operations:
        sources, results = trace.values(operation)
        if (
            operation.name not in SATURATING
            or not results
            or results[0].shape != sources[0].shape
            or not sources[0].is_floating_point()
        ):
            continue
        value, source = results[0].detach(), sources[0].detach()
        if operation.name in ("clamp", "hardtanh", "relu6"):
            flat = (value != source) & (source != 0)
            if operation.name == "relu6" or float(value.amin()) == 0.0:
                flat &= source > 0  # a ReLU in other words
        elif operation.name == "tanh":
            flat = value.abs() > 1 - 1e-6
        else:
            flat = (value > 1 - 1e-6) | (value < 1e-6) if operation.name != "log_softmax" else value > -1e-6
        if float(flat.float().mean()) > MANY:
            saturated.append(operation)
    return saturated


def _saturation(trace: ForwardTrace, operation: Operation) -> Obstacle:
    where = _place(operation.layer, operation.layer_class)
    return Obstacle(
        ObstacleKind.SATURATION,
        f"{where} is saturated: most values of its {operation.name} are at an end, with no gradient",
        operation.layer,
        operation.name,
    )


def _near_copy(trace: ForwardTrace) -> int | None:
    """Return the position of the last operation whose result looks like the input; None where only the input does."""
    inputs, position = trace.tensors[0].detach().float(), None
    centred = inputs - inputs.mean()
    for operation in trace.operations:
        for result in trace.values(operation)[1]:
            if result.shape != inputs.shape or not result.is_floating_point():
                continue
            value = result.detach().float()
            value = value - value.mean()
            correlation = (centred * value).sum() / (centred.norm() * value.norm()).clamp(min=1e-12)
            if float(correlation) > NEAR_COPY:
                position = operation.position
    return position


def _inner_logits(trace: ForwardTrace) -> int | None:
    """Return the position of the first operation whose result names the classes of the output; None where it is the output."""
    output = trace.output
    if output is None or output.ndim != 2:
        return None
    classes = output.argmax(1)
    for operation in trace.operations:
        for result in trace.values(operation)[1]:
            if result is output:
                return None
            if (
                result.shape == output.shape
                and result.is_floating_point()
                and float((result.argmax(1) == classes).float().mean()) > 0.95
            ):
                return operation.position
    return None
