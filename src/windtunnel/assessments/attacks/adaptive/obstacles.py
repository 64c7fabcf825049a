"""Diagnose what stops or misleads the gradients of a model: obstacles with their evidence, from a trace and from measurements."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adaptive.operations import (
    BATCH_NORM,
    FINISHED_OUTSIDE,
    HOOKS,
    LEAVING,
    OUTSIDE,
    RANDOM,
    STEPS,
    ForwardTrace,
    Operation,
    TracedCall,
    is_narrow,
    is_near_copy,
    names_classes_of,
    place,
    tensors_in,
    trace_of,
)
from windtunnel.assessments.attacks.adaptive.surrogates import REMAINDERS, SATURATING, FreshCopies
from windtunnel.assessments.attacks.fresh_draws import SAME, differs
from windtunnel.core.classifier import copied
from windtunnel.core.contracts import Json
from windtunnel.core.criterion import Criterion
from windtunnel.core.seeds import seeded
from windtunnel.core.statistics import median

SAMPLES = 16  # of the diagnosis
FEW = 4  # samples of the tests for randomness and for state between calls
SEEDS = 8  # of the test for randomness
CALLS = 12  # of the test for state between calls
CHANGED = 1e-5  # relative difference of logits above which the state of the model changed them
HAIR = 1e-3  # of the range: the step of numerical differences
TINY = 1e-5  # a change that no picture shows
PATHS, POINTS = 8, 16  # samples and points of the integrals of the gradient along random paths
OFF_PATH = 0.25  # relative difference of those integrals from the change of the logits
SLIGHT = 1e-4  # of the ratio of the spreads of a result and its argument: a slope that is rounding error
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
    LOW_PRECISION = "low_precision"
    OUTSIDE_THE_GRAPH = "outside_the_graph"
    CUSTOM_BACKWARD = "custom_backward"
    GRADIENT_HOOK = "gradient_hook"
    GRADIENT_AWARE = "gradient_aware"
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
        """Return the JSON value for metadata.json."""
        return {"kind": self.kind.value, "layer": self.layer, "operation": self.operation, "evidence": self.sentence}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Obstacles of a model, and the measurements that remedies use.

    identity_at: position of the last operation whose result is a near copy of the input. enters_at: of those that take
    such a copy, or one of what left torch, from outside of torch's graph. logits_at: of the first whose
    result names the same classes as the output. saturated: of operations that cut most of their elements. draws: of EOT.
    calls: after so many, the state between calls gives no new answer to the same input.
    margin: median absolute margin of the logits. passes: forward passes that the diagnosis took, of one sample each.
    """

    obstacles: tuple[Obstacle, ...]
    identity_at: int | None = None
    enters_at: frozenset[int] = frozenset()
    logits_at: int | None = None
    saturated: frozenset[int] = frozenset()
    draws: int = 1
    calls: int = 1
    margin: float = 1.0
    forwards: int = 0
    backwards: int = 0

    @property
    def is_cut(self) -> bool:
        """True if no gradient reaches the input, so that a library's attack would raise."""
        return any(obstacle.sentence.startswith(_CUT) for obstacle in self.obstacles)

    def including(self, kind: ObstacleKind, sentence: str) -> "Diagnosis":
        """Return the diagnosis with another obstacle of the whole model."""
        return replace(self, obstacles=(*self.obstacles, Obstacle(kind, sentence)))

    def has(self, *kinds: ObstacleKind) -> bool:
        """Return True if there is an obstacle of one of these kinds."""
        return any(obstacle.kind in kinds for obstacle in self.obstacles)


NAMES_OF_OPERATIONS = {
    ObstacleKind.ROUNDING: "round floor ceil trunc floor_divide remainder fmod frac quantize_per_tensor quantize_per_channel "
    "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine linear_dynamic linear_relu_dynamic conv2d_dynamic",
    ObstacleKind.SIGN: "sign heaviside",
    ObstacleKind.COMPARISON: "gt ge lt le eq ne bucketize searchsorted",
    ObstacleKind.SELECTION: "argmax argmin one_hot topk kthvalue argsort sort max min",
    ObstacleKind.INTEGER_CAST: "long int short byte char bool",
    ObstacleKind.DETACHED: "detach data",
    ObstacleKind.OUTSIDE_THE_GRAPH: " ".join((OUTSIDE, FINISHED_OUTSIDE, *LEAVING)),
}
_OPERATIONS = {name: kind for kind, names in NAMES_OF_OPERATIONS.items() for name in names.split()}
_EFFECTS = {
    ObstacleKind.SIGN: "takes the sign: zero gradient",
    ObstacleKind.COMPARISON: "compares with thresholds: no gradient",
    ObstacleKind.INTEGER_CAST: "casts to integers: no gradient",
    ObstacleKind.DETACHED: "detaches from the graph: no gradient passes",
    ObstacleKind.OUTSIDE_THE_GRAPH: "leaves torch's graph: no gradient passes",
}
_EVENTS = (
    (STEPS, ObstacleKind.ITERATION, "takes gradient steps of its own at inference"),
    (HOOKS, ObstacleKind.GRADIENT_HOOK, "registers a hook that may change a gradient"),
)


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
        duplicate = copied(module)  # calls may leave state behind
        self.module = module if duplicate is None else duplicate
        self.criterion, self.inputs, self.labels, self.epsilon = criterion, inputs, labels, epsilon
        self.forwards = self.backwards = 0
        self.calls = 1
        self.recorded: Tensor | None = None  # logits of the last pass that recorded a graph

    def result(self) -> Diagnosis:
        """Return the diagnosis."""
        noisy = (self.inputs + self.epsilon * (2 * torch.rand_like(self.inputs) - 1)).clamp(0, 1)
        both = torch.cat([self.inputs, noisy])
        changes = list(self._randomness()) or list(self._state())
        if any(obstacle.kind is ObstacleKind.STATE for obstacle in changes):
            self.module = FreshCopies(self.module if self.untouched is None else self.untouched)
        logits = self._logits(self.inputs)
        with seeded(0):  # torch.export and a model of another runtime trace to nothing
            trace = trace_of(self.module, both)
        self.forwards += len(both)
        is_random = any(obstacle.kind is ObstacleKind.RANDOM for obstacle in changes)
        saturated, logits_at = _saturated(trace), _inner_logits(trace)
        operations = [*_of_operations(trace), *_of_precision(trace)]
        has_flat = any(operation.name not in SATURATING for operation in saturated)
        if (operations or has_flat) and not is_random and self._follows_its_gradient(noisy):
            saturated = [operation for operation in saturated if operation.name in SATURATING]
            # What answers by some logits alone has the gradient of these, which says nothing of the other classes.
            last = [o for o in trace.operations if logits_at is not None and o.position > logits_at]
            operations = list(_of_operations(replace(trace, operations=last)))
        obstacles = [*operations, *_of_events(trace), *_of_hooks(self.module)]
        for operation in saturated:
            effect = f"is saturated: most values of its {operation.name} are at an end, with no gradient"
            if operation.name not in SATURATING:
                effect = f"applies {operation.name}, whose derivative is zero: no gradient passes"
            sentence = f"{operation.place} {effect}"
            obstacles.append(Obstacle(ObstacleKind.SATURATION, sentence, operation.layer, operation.name))
        obstacles += [*_named(changes, trace), *self._seeding(), *self._logit_scale(logits)]
        obstacles += self._gradients(logits, trace, is_random=is_random)
        if not is_random:
            obstacles += [*self._batch(logits, trace), *self._discontinuity(logits)]
        draws = self._draws() if is_random else 1
        return Diagnosis(
            tuple(dict.fromkeys(obstacles)),
            _near_copy(trace),
            frozenset(o.position for o in trace.operations if o.name == OUTSIDE),
            logits_at,
            frozenset(o.position for o in saturated),
            draws,
            self.calls,
            _median_margin(self.criterion, logits, self.labels),
            self.forwards,
            self.backwards,
        )

    def _follows_its_gradient(self, ends: Tensor) -> bool:
        """Return True if the change of the logits from the inputs to `ends` (n, ...) equals the integral of their gradient.

        So do those of a network that compares or rounds without harm: a ReLU written as a comparison, a straight-through
        estimator of many levels. A jump, or a derivative that is missing, makes a difference.
        """
        starts, ends = self.inputs[:PATHS], ends[:PATHS]
        shares = ((torch.arange(POINTS) + 0.5) / POINTS).to(starts.device).view(-1, *[1] * starts.ndim)
        points = (starts + shares * (ends - starts)).flatten(0, 1).requires_grad_()
        self.forwards, self.backwards = self.forwards + len(points), self.backwards + len(points)
        change = self._logits(ends) - self._logits(starts)
        weights = torch.randn_like(change)
        gradient = _gradient_of(lambda: (self.module(points).float() * weights.repeat(POINTS, 1)).sum(), points)
        if gradient is None:
            return False
        steps = (ends - starts).repeat(POINTS, *[1] * (starts.ndim - 1))
        integral = (gradient * steps).flatten(1).sum(1).view(POINTS, -1).mean(0)
        change = (change * weights).sum(1)
        return bool((integral - change).norm() <= OFF_PATH * torch.maximum(integral.norm(), change.norm()))

    def _logits(self, inputs: Tensor, module: nn.Module | None = None) -> Tensor:
        self.forwards += len(inputs)
        with torch.no_grad():
            logits: Tensor = (self.module if module is None else module)(inputs)
        return logits.float()

    def _gradient(self, inputs: Tensor, margin: bool = True) -> Tensor | None:
        """Return the gradient of a loss, (n, ...); None where the graph is cut."""
        point = inputs.clone().requires_grad_()
        self.forwards, self.backwards = self.forwards + len(inputs), self.backwards + len(inputs)
        loss = self.criterion.margin_loss if margin else self.criterion.loss

        def value() -> Tensor:
            self.recorded = self.module(point).float()
            return loss(self.recorded, self.labels[: len(inputs)]).sum()

        return _gradient_of(value, point)

    def _gradients(self, logits: Tensor, trace: ForwardTrace, *, is_random: bool) -> Iterator[Obstacle]:
        """Yield obstacles measured on the gradient, with both losses and numerical differences."""
        losses = ("the margin", "cross entropy")
        gradients = {name: self._gradient(self.inputs, margin=name == "the margin") for name in losses}
        if self.recorded is not None and not is_random and differs(self.recorded.detach(), logits, 1e-3):
            sentence = "the logits are others where gradients are recorded: the model hides from attacks by gradients"
            yield Obstacle(ObstacleKind.GRADIENT_AWARE, sentence)
        if all(gradient is None for gradient in gradients.values()):
            if (call := trace.first(LEAVING)) and not trace.operations:
                sentence = f"{call.place} leaves torch's graph ({call.name}): no gradient passes"
                yield Obstacle(ObstacleKind.OUTSIDE_THE_GRAPH, sentence, call.layer, call.name)
            outside = ", and torch does not compute the logits: queries and a distilled student remain"
            yield Obstacle(ObstacleKind.ZERO_GRADIENT, _CUT if trace.operations else _CUT + outside)
            return
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            rows, of = gradient.flatten(1), f"of {len(gradient)} samples"
            if n := int((~rows.isfinite()).any(1).sum()):
                sentence = f"the gradient of {name} is NaN or infinite at {n} {of}"
                yield Obstacle(ObstacleKind.GRADIENT_NOT_FINITE, sentence)
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

    def _randomness(self) -> Iterator[Obstacle]:
        """Yield randomness: calls of copies as the model was at first, or of a model that cannot be copied, differ."""
        calls = []
        for start in range(SEEDS):  # a choice of two for the whole batch is the same in half of all pairs
            with seeded(start):
                calls.append(self._logits(self.inputs[:FEW], copied(self.untouched)))
        if any(differs(calls[0], other) for other in calls[1:]):
            yield Obstacle(ObstacleKind.RANDOM, "")

    def _seeding(self) -> Iterator[Obstacle]:
        """Yield a generator that the model itself seeds."""
        states = []
        for start in (1, 2):
            torch.manual_seed(start)
            self._logits(self.inputs[:1])
            states.append(torch.get_rng_state())
        if torch.equal(*states):
            sentence = "the forward pass seeds torch's generator: every search draws the same"
            yield Obstacle(ObstacleKind.RESEEDED, sentence, operation="manual_seed")

    def _state(self) -> Iterator[Obstacle]:
        """Yield state that calls leave behind: the same call, or one after many others, gets another answer."""
        used = copied(self.untouched)
        if used is None:
            return
        few = self.inputs[:FEW]
        answers = [self._logits(few, used) for _ in range(CALLS)]
        is_new = [all(differs(answer, earlier, CHANGED) for earlier in answers[:i]) for i, answer in enumerate(answers)]
        changed = next((i for i, answer in enumerate(answers) if differs(answer, answers[0], CHANGED)), None)
        moves = [float((later - answer).abs().max()) for answer, later in pairwise(answers)]
        settles = all(later < move for move, later in pairwise(moves))  # as with a moving average of what was asked
        if all(is_new) and not settles:
            yield Obstacle(ObstacleKind.RANDOM, "")  # by a generator of its own, which copies repeat
            return
        if changed is not None:
            after = f"after {changed} call{'s' * (changed > 1)}"
        else:
            move = self._remembered(few, used)
            after = f"after {CALLS} calls for inputs within {move:g}" if move else ""
        if after:
            self.calls = CALLS - is_new[::-1].index(True)
            yield Obstacle(ObstacleKind.STATE, f"answers change {after}: the model keeps state between calls")

    def _remembered(self, few: Tensor, used: nn.Module) -> float:
        """Return how far from `few` (n, ...) a used copy answers otherwise than a fresh one, as a cache does; 0 if it does not."""
        for move in (4 * HAIR, self.epsilon / 2):
            near = (few + move).clamp(0, 1)
            if differs(self._logits(near, copied(self.untouched)), self._logits(near, used), CHANGED):
                return move
        return 0.0

    def _batch(self, logits: Tensor, trace: ForwardTrace) -> Iterator[Obstacle]:
        """Yield dependence of a prediction on the other samples of its batch, or on their order."""
        if len(logits) < 2:
            return
        dim = self.inputs / 2
        others = torch.cat([dim, torch.ones_like(dim[:1]), torch.zeros_like(dim[:1])])
        apart = differs(self._logits(self.inputs[:1]), logits[:1], 1e-3)
        if apart or differs(self._logits(others)[:-2], self._logits(dim), 1e-3):
            call = trace.first(BATCH_NORM)
            because = f": {call.place} is in training mode" if call else ""
            layer = call.layer if call else ""
            yield Obstacle(ObstacleKind.BATCH, f"the answer to a sample depends on the batch{because}", layer)
        elif differs(self._logits(self.inputs.flip(0)).flip(0), logits, 1e-3):
            yield Obstacle(ObstacleKind.BATCH, "the order of the samples changes their logits")

    def _discontinuity(self, logits: Tensor) -> Iterator[Obstacle]:
        """Yield answers that jump between two inputs that nobody can tell apart."""
        moved = self._logits((self.inputs + TINY * (2 * torch.rand_like(self.inputs) - 1)).clamp(0, 1))
        scale = logits.abs().amax(1).clamp(min=1e-12)
        change = ((moved - logits).abs().amax(1) / scale).mean()
        if float(change) > 0.05:
            sentence = f"a change of {TINY:g} of the input changes the logits by {float(change):.0%}"
            yield Obstacle(ObstacleKind.DISCONTINUOUS, sentence)

    def _logit_scale(self, logits: Tensor) -> Iterator[Obstacle]:
        """Yield logits on which losses saturate or are flat."""
        margin, operation, sentence = _median_margin(self.criterion, logits, self.labels), "", ""
        if bool(((logits >= 0).all() & ((logits.sum(1) - 1).abs() < 1e-4)).all()):
            kind, operation = ObstacleKind.PROBABILITIES, "softmax"
            sentence = "the outputs are probabilities: the loss applies a second softmax"
        elif margin > LARGE_MARGIN:
            kind, why = ObstacleKind.LARGE_LOGITS, "the softmax is 0 or 1, and cross entropy has no gradient"
            sentence = f"the median margin of the logits is {margin:.3g}: {why}"
        elif margin < SMALL_MARGIN:
            kind = ObstacleKind.TINY_LOGITS
            sentence = f"the median margin of the logits is {margin:.1g}: cross entropy is flat"
        if sentence:
            yield Obstacle(kind, sentence, operation=operation)

    def _draws(self) -> int:
        """Return how many gradients to average: enough that the mean's error is about half of its size."""
        few = self.inputs[:FEW]
        measured = [self._gradient(few) for _ in range(6)]
        gradients = [g.flatten(1) for g in measured if g is not None and bool(g.isfinite().all())]
        if len(gradients) < 2:
            return 8
        stacked = torch.stack(gradients)
        noise, size = stacked.var(0).sum(1).mean(), stacked.mean(0).square().sum(1).mean()
        signal = (size - noise / len(gradients)).clamp(min=1e-12)
        return int((4 * noise / signal).clamp(4, MOST_DRAWS).ceil())


def _gradient_of(value: Callable[[], Tensor], point: Tensor, *, keeps_graph: bool = False) -> Tensor | None:
    """Return the gradient of a scalar at `point`; None where no graph leads there, or where a pass raises with gradients on."""
    # Suppressed is whatever a custom backward pass, or a forward pass on a leaf, raises.
    with suppress(Exception), torch.enable_grad():
        return torch.autograd.grad(value(), point, allow_unused=True, retain_graph=keeps_graph)[0]
    return None


def _median_margin(criterion: Criterion, logits: Tensor, labels: Tensor) -> float:
    return median(criterion.margin(logits, labels).abs().nan_to_num(0.0, 1e30, 0.0).tolist()) or 0.0


def _named(changes: list[Obstacle], trace: ForwardTrace) -> Iterator[Obstacle]:
    """Yield obstacles; randomness is named by its operations if the trace has them."""
    for obstacle in changes:
        if obstacle.kind is ObstacleKind.RANDOM:
            call = trace.first(RANDOM) or TracedCall("", "", "")
            where, drawn = (call.place, f" ({call.name})") if call.name else ("the forward pass", "")
            sentence = f"{where} draws at random{drawn}: two calls differ"
            obstacle = Obstacle(obstacle.kind, sentence, call.layer, call.name)
        yield obstacle


def _of_precision(trace: ForwardTrace) -> Iterator[Obstacle]:
    """Yield the first operation whose result has floats of fewer bits than the input."""
    for operation in trace.operations:
        for result in filter(is_narrow, trace.values(operation)[1]):
            narrow, bits = str(result.dtype).removeprefix("torch."), 1 - math.log2(torch.finfo(result.dtype).eps)
            sentence = f"{operation.place} computes in {narrow} ({bits:.0f} bits of precision): small gradients are rounded, or zero"
            yield Obstacle(ObstacleKind.LOW_PRECISION, sentence, operation.layer, operation.name)
            return


def _of_events(trace: ForwardTrace) -> Iterator[Obstacle]:
    """Yield optimisation at inference, and hooks on tensors."""
    for names, kind, effect in _EVENTS:
        if call := trace.first(names):
            yield Obstacle(kind, f"{call.place} {effect}", call.layer, call.name)


def _of_operations(trace: ForwardTrace) -> Iterator[Obstacle]:
    """Yield operations between input and output that have no derivative, or another than their own."""
    for operation in trace.operations:
        name, kind, function = operation.name, _kind_of(operation, trace), operation.function
        if function is None and kind is not None:
            effect = _effect(kind, operation, trace)
        elif getattr(function, "is_twin", False):
            name, kind = "twin", ObstacleKind.OUTSIDE_THE_GRAPH
            effect = "answers by a deployed file outside of torch, with the gradient of its twin"
        elif function is not None and _is_wrong(operation, trace):
            name, kind = function.__name__, ObstacleKind.CUSTOM_BACKWARD
            effect = f"calls {name}, whose backward pass is not the derivative of its forward pass"
        else:
            continue
        yield Obstacle(kind, f"{operation.place} {effect}", operation.layer, name)


def _kind_of(operation: Operation, trace: ForwardTrace) -> ObstacleKind | None:
    """Return the kind of obstacle that an operation is, or None."""
    sources, results = trace.values(operation)
    kind = _OPERATIONS.get(operation.name)
    takes_floats = sources[0].is_floating_point()
    if operation.name in ("sort", "max", "min") and not _is_chosen_by(operation, trace):
        kind = None
    if operation.name in ("to", "type", "_to_copy", "view") and takes_floats and not results[0].is_floating_point():
        return ObstacleKind.INTEGER_CAST
    if kind is None and takes_floats and results and results[0].dtype is torch.bool and operation.name[:2] != "is":
        return ObstacleKind.COMPARISON
    if kind in (ObstacleKind.ROUNDING, ObstacleKind.INTEGER_CAST, ObstacleKind.DETACHED) and not takes_floats:
        return None
    return ObstacleKind.DETACHED if kind is None and _is_without_graph(operation, results) else kind


def _is_chosen_by(operation: Operation, trace: ForwardTrace) -> bool:
    """Return True if what follows uses the indices of a result (values, indices)."""
    return len(operation.results) == 2 and any(operation.results[1] in other.sources for other in trace.operations)


def _is_without_graph(operation: Operation, results: list[Tensor]) -> bool:
    """Return True for floats computed of a tensor in the graph, and not in it themselves, as under `torch.no_grad`."""
    first = operation.arguments[0] if operation.arguments else None
    is_new = operation.name.endswith("_like") or operation.name.startswith("new_")  # of the first one's shape alone
    floats = [result for result in results if result.is_floating_point()]
    is_cut = bool(floats) and not any(result.requires_grad for result in floats)
    return isinstance(first, Tensor) and first.requires_grad and is_cut and not is_new


def _effect(kind: ObstacleKind, operation: Operation, trace: ForwardTrace) -> str:
    """Return the effect of an operation, as the end of a sentence."""
    if operation.name in REMAINDERS:
        return "takes remainders (mod), whose derivative ignores the jumps: misleading gradients"
    if kind is ObstacleKind.ROUNDING:
        levels = len(trace.values(operation)[1][0].detach().dequantize().float().unique())
        return f"rounds to {levels} levels: zero gradient" if levels <= 256 else "rounds: zero gradient"
    if kind is ObstacleKind.SELECTION:
        effects = {
            "argmax": "answers by the largest alone",
            "argmin": "answers by the smallest alone",
            "one_hot": "makes a one-hot code",
            "argsort": "ranks",
            "sort": "ranks",
            "max": "answers by the largest alone",
            "min": "answers by the smallest alone",
        }
        return f"{effects.get(operation.name, 'keeps the k largest')}: no gradient passes the choice"
    return _EFFECTS[kind]


def _is_wrong(operation: Operation, trace: ForwardTrace) -> bool:
    """Return True if the backward pass of a custom function raises, is zero, or disagrees with differences of its forward pass."""
    assert operation.function is not None
    floats = [isinstance(value, Tensor) and value.is_floating_point() for value in operation.arguments]
    if True not in floats or not any(result.is_floating_point() for result in trace.values(operation)[1]):
        return True
    argument_at = floats.index(True)
    point = operation.arguments[argument_at].detach()  # type: ignore[attr-defined]

    def call(value: Tensor) -> Tensor:
        arguments = tuple(1 * value if i == argument_at else a for i, a in enumerate(operation.arguments))
        results = tensors_in(operation.function.apply(*arguments))  # type: ignore[union-attr]
        return torch.cat([result.flatten() for result in results if result.is_floating_point()])

    direction = torch.randn_like(point)
    step = HAIR * point.abs().mean().clamp(min=1e-6)
    with torch.no_grad():
        higher, lower = call(point + step * direction), call(point - step * direction)
    weights, leaf = torch.randn_like(higher), point.clone().requires_grad_()
    gradient = _gradient_of(lambda: (call(leaf) * weights).sum(), leaf)
    if gradient is None or not bool(gradient.any()):
        return True
    rise = ((higher - lower) * weights).sum() / (2 * step)
    says = (gradient * direction).sum()
    return bool((rise - says).abs() > 0.5 * torch.maximum(rise.abs(), says.abs()))


def _of_hooks(module: nn.Module) -> Iterator[Obstacle]:
    """Yield modules that change gradients by hooks."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            sentence = f"{place(name, type(part).__name__)} has a hook that may change its gradient"
            yield Obstacle(ObstacleKind.GRADIENT_HOOK, sentence, name, "backward hook")


def _saturated(trace: ForwardTrace) -> list[Operation]:
    """Return operations that are flat at most of their elements, and others whose result varies and that are flat at all.

    A quotient or a product is flat if it is by one of its arguments: x / |x|.
    """
    saturated = []
    for operation in trace.operations:
        sources, results = trace.values(operation)
        is_named = operation.function or _kind_of(operation, trace)
        if is_named or not results or not results[0].is_floating_point() or results[0].shape != sources[0].shape:
            continue
        result, name = results[0].detach(), operation.name
        flat = [_flat(source, results[0]) for source in sources if source.requires_grad and source.is_floating_point()]
        if not flat:
            continue
        if name == "relu6" or (name in ("clamp", "hardtanh") and float(result.amin()) == 0.0):
            flat[0] &= sources[0] > 0  # a ReLU in other words
        of_arguments = any if name in ("div", "mul") else all
        if name in SATURATING:
            is_flat = float(flat[0].float().mean()) > MANY
        else:
            is_flat = of_arguments(bool(part.all()) for part in flat) and bool((result != result.flatten()[0]).any())
        if is_flat:
            saturated.append(operation)
    return saturated


def _flat(source: Tensor, result: Tensor) -> Tensor:
    """Return the elements of a source by which a result has next to no derivative, bool of its shape."""
    weights = torch.randn(result.shape, device=result.device)
    gradient = _gradient_of(lambda: (result.float() * weights).sum(), source, keeps_graph=True)
    if gradient is None or result._version:  # changed in place since
        return torch.zeros_like(source, dtype=torch.bool)
    slope = result.detach().float().std(correction=0) / source.detach().float().std(correction=0)
    return (gradient.float().abs() <= SLIGHT * slope) & slope.isfinite()  # of an argument that varies


def _near_copy(trace: ForwardTrace) -> int | None:
    """Return the position of the last operation whose result looks like the input; None where only the input does."""
    for operation in reversed(trace.operations):
        results = trace.values(operation)[1]
        if operation.name not in (OUTSIDE, "__setitem__") and any(
            is_near_copy(result, trace.tensors[0]) for result in results
        ):
            return operation.position
    return None


def _inner_logits(trace: ForwardTrace) -> int | None:
    """Return the position of the first operation whose result names the classes of the output; None where it is the output."""
    for operation in trace.operations:
        for result in trace.values(operation)[1]:
            if trace.output is not None and names_classes_of(trace.output, result):
                return None if result is trace.output else operation.position
    return None
