"""Single instances in the format of the verification competition, VNN-LIB and ONNX: decided by the steps of verifications, or written."""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windtunnel.assessments.verification.branch_and_bound.session import Searcher
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsifier import (
    QUICK_RESTARTS,
    QUICK_STEPS,
    ROUNDING,
    Accept,
    falsify,
    falsify_targeted,
)
from windtunnel.boundary.files import check_file, path_text, read_bytes
from windtunnel.boundary.limits import bounded
from windtunnel.boundary.models.backends import OnnxModule
from windtunnel.boundary.models.onnx_network import OnnxNetwork
from windtunnel.boundary.vnnlib_text import Specification, counter_example, read_specifications, robustness
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.verification import BranchAndBound, VerificationEntry

_AGREEMENT = 1e-4  # of the largest logit: by how much torch and onnxruntime may differ on one graph
_COMPARED = 4  # points of the box
_ROOM = 1e-7  # of an end of the box: half a step of float32
_REMEDY = "export it in float32, with a dynamic batch, in which no sample alters another's output"
_OUTPUT_ROUNDING = 2.0**-21  # eight times the rounding of an output to float32
_LOADED = 60.0  # seconds to read a graph and run it once, where there is no deadline
_MAX_BYTES = 2**31  # of an unpacked graph: protobuf holds no more
_ATTACKS, _BOUNDS = {"quick-attack", "attack"}, {"ibp", "crown"}  # steps that decide nothing after those of this module
_ATTACKED = 0.3  # of the seconds that are left: what attacks may take
_HALF = 0.5  # the box is the Linf ball of this radius around the middle of the unit cube


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """`sat`, `unsat`, `timeout` or `unknown`; for sat a point (d,) of the box and the graph's outputs (K,) there, float64."""

    word: str
    inputs: Tensor | None = None
    outputs: Tensor | None = None

    def text(self) -> str:
        """Return the result in the competition's format: the word, and below `sat` the counter-example."""
        if self.inputs is None or self.outputs is None:
            return self.word
        return f"{self.word}\n{counter_example(self.inputs, self.outputs)}"


class _Margins(nn.Module):
    """The margins of a specification as logits over the unit cube of its box: class 0 leads where no term holds.

    The logit of a term is the least of the margins of its rows, as ReLUs: min(a, b) = a - relu(a - b). Any box becomes the
    whole domain [0, 1] this way, and any linear inequality a class that draws level. The box is widened by what rounding to
    float32 can cut off of it.
    """

    def __init__(
        self, network: nn.Module, specification: Specification, shape: tuple[int, ...], inner: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.network, self._inner = network, inner
        low, high = (end + side * _ROOM * end.abs() for end, side in ((specification.low, -1), (specification.high, 1)))
        zeros = torch.zeros(1, specification.rows.shape[1], dtype=torch.float64)
        self.low: Tensor
        self.width: Tensor
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("low", low.view(shape).float())
        self.register_buffer("width", (high - low).view(shape).float())
        # (place in its term, term) -> row; a term with fewer rows than others repeats its last one.
        members = [(specification.terms == term).nonzero().flatten() for term in specification.terms.unique()]
        self._places = max(map(len, members))
        rows = torch.stack([torch.stack([m[min(i, len(m) - 1)] for m in members]) for i in range(self._places)])
        weights = [torch.cat([zeros, -specification.rows[position]]) for position in rows]
        self.register_buffer("weight", torch.cat(weights).float())
        biases = [torch.cat([specification.limits.new_zeros(1), specification.limits[position]]) for position in rows]
        self.register_buffer("bias", torch.cat(biases).float())
        self.num_classes = 1 + len(members)

    def forward(self, unit: Tensor) -> Tensor:
        """Return the logits (N, 1 + number of terms)."""
        x = unit * self.width + self.low
        if x.shape[1:] != self._inner:
            x = x.reshape(x.shape[0], *self._inner)
        margins = F.linear(self.network(x), self.weight, self.bias)
        least = margins[:, : self.num_classes]
        for position in range(1, self._places):
            least = least - F.relu(least - margins[:, position * self.num_classes : (position + 1) * self.num_classes])
        return least


def decide_instance(
    onnx: Path, specification: Path, entry: VerificationEntry, seed: int = 0, deadline: float = math.inf
) -> InstanceResult:
    """Decide one instance. `entry`: which steps, with which limits. deadline: of `time.monotonic`, for all boxes of the
    specification, of which each may take what those before it have left.

    Raises UserError for files that are no instance, IncompatibleError for a graph that no step has bounds for.
    """
    if onnx.suffix.lower() == ".gz":
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder) / onnx.stem
            unpacked.write_bytes(read_bytes(onnx, max_bytes=_MAX_BYTES, gunzip=True))
            return decide_instance(unpacked, specification, entry, seed, deadline)
    check_file(onnx, max_bytes=_MAX_BYTES)  # a named pipe would be waited for
    specifications, notes = read_specifications(specification), list[str]()
    numbers = len(specifications[0].low)
    seconds = _LOADED if deadline == math.inf else deadline - time.monotonic()
    if seconds <= 0:
        return InstanceResult("timeout")
    with bounded(f"{path_text(onnx)}: the graph, read and run by onnxruntime,", seconds, "--timeout"):
        network = OnnxNetwork(onnx, numbers=numbers).eval().requires_grad_(False)
        if network.dtype not in {torch.float32, torch.float64}:
            raise IncompatibleError(f"{onnx}: takes numbers of {network.dtype}; {_REMEDY}")
        network = network.float()  # as verifiers compute
        reference = OnnxModule(onnx, numbers=numbers)
        rounding = _check(onnx, network, reference, specifications[0])
    for number, spec in enumerate(specifications):
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            notes.append("timeout")
            continue
        if number:
            rounding = _check(onnx, network, reference, spec)
        decision = _decide(network, reference, spec, rounding, _within(entry, seconds), seed)
        if decision.word == "sat":
            return decision
        notes.append(decision.word)
    return InstanceResult(next((word for word in ("timeout", "unknown") if word in notes), "unsat"))


def _within(entry: VerificationEntry, seconds: float) -> VerificationEntry:
    """Return the entry with so many seconds at most."""
    if seconds == math.inf:
        return entry
    limits = {key: min(seconds, getattr(entry, key) or seconds) for key in ("timeout", "time_budget")}
    return entry.model_copy(update=limits)


def _check(onnx: Path, network: OnnxNetwork, reference: OnnxModule, specification: Specification) -> Tensor:
    """Return by how much float32 may be off in each row of a specification (m,), four times what is seen at some points.

    Raises for a specification of other sizes, and for a graph that torch computes otherwise than onnxruntime.
    """
    shape, inputs = "x".join(map(str, network.input_shape)), math.prod(network.input_shape)
    if len(specification.low) != inputs:
        raise UserError(
            f"{onnx}: takes {shape}, {inputs} numbers; the specification declares {len(specification.low)} inputs"
        )
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(_COMPARED, inputs, generator=generator, dtype=torch.float64)
    points = torch.lerp(specification.low.expand_as(places), specification.high.expand_as(places), places).float()
    points = points.view(-1, *network.input_shape)
    theirs, ours = reference(points), network(points)
    if ours.shape[1] != specification.rows.shape[1]:
        raise UserError(
            f"{onnx}: gives {ours.shape[1]} outputs; the specification declares {specification.rows.shape[1]}"
        )
    if not ours.is_floating_point():
        raise IncompatibleError(f"{onnx}: its output holds {ours.dtype}; export the numbers that it is computed from")
    apart = float((theirs - ours).abs().max())
    if not apart <= _AGREEMENT * max(1.0, float(theirs.abs().max())):
        raise IncompatibleError(
            f"{onnx}: torch and onnxruntime differ by {apart:.3g} in an output of this graph; {_REMEDY}"
        )
    differences: Tensor = specification.rows @ (theirs - ours).double().T
    rounding: Tensor = specification.rows.abs() @ theirs.double().abs().amax(0) * _OUTPUT_ROUNDING
    return rounding + 4 * differences.abs().amax(1)


def _decide(
    network: OnnxNetwork,
    reference: OnnxModule,
    specification: Specification,
    rounding: Tensor,
    entry: VerificationEntry,
    seed: int,
) -> InstanceResult:
    """Decide a box. rounding: (m,), by how much each row must be missed, so that the graph misses it as it runs."""
    inner = network.input_shape

    def judged(example: Tensor, otherwise: str = "unknown") -> InstanceResult:
        """Return `sat` if a point of the unit cube breaks the graph in float32, as the competition's judge runs it."""
        x = torch.lerp(specification.low, specification.high, example.double().flatten())
        x = x.clamp(specification.low, specification.high)
        outputs = reference(x.float().view(1, *inner)).flatten()
        return InstanceResult("sat", x, outputs) if specification.holds_at(outputs) else InstanceResult(otherwise)

    if bool((specification.low == specification.high).all()):
        return judged(torch.full_like(specification.low, _HALF), "unsat")
    shape = inner if len(inner) == 3 else (1, 1, len(specification.low))  # verifiers take images
    missed = replace(specification, limits=specification.limits + rounding)
    module = _Margins(network, missed, shape, inner).eval().requires_grad_(False)
    names = tuple(str(i) for i in range(module.num_classes))
    classifier = Classifier(module, len(names), shape, frozenset(Capability), module_digest(module), "the graph")
    middle = Dataset(torch.full((1, *shape), _HALF), torch.zeros(1, dtype=torch.int64), ("middle",), names)
    subject = subject_of(classifier, middle, seed)

    def accept(classifier: Classifier, points: Tensor, targets: Tensor) -> Tensor:
        """Accept the most likely point if onnxruntime says so: outputs as large as a limit are asked for, too."""
        losses = classifier.criterion.margin_loss(classifier.logits(points), targets)
        is_first = torch.arange(len(points)) == losses.argmax()
        return is_first & (bool(losses.amax() >= -ROUNDING) and judged(points[is_first]).word == "sat")

    deadline = time.monotonic() + (entry.timeout or math.inf)
    word, example = _decide_easy(subject, deadline, accept)
    if word in {"unknown", "unbounded"}:
        now = time.monotonic()
        if now >= deadline:
            return InstanceResult("timeout")
        done = _ATTACKS if word == "unbounded" else _ATTACKS | _BOUNDS
        # Long attacks are on the graph as it was read: a traced one has no gradient at jumps.
        searches, until = (falsify, falsify_targeted), now + (deadline - now) * _ATTACKED
        word, example = "sat", _attacked(subject, searches, until, accept=accept)
        if example is None:
            steps = tuple(step for step in entry.steps if step not in done) or entry.steps
            remaining = _within(entry.model_copy(update={"steps": steps}), deadline - time.monotonic())
            word, example = _decide_hard(subject, remaining)
    return InstanceResult(word) if example is None else judged(example)


def _decide_easy(subject: Subject, deadline: float, accept: Accept) -> tuple[str, Tensor | None]:
    """Return the word and the counter-example of a short attack, then of bounds without a split; `unbounded` where there are none.

    Nothing that traces a graph or bounds it by another library is imported for them: that takes longer than they do.
    """
    example = _attacked(subject, (falsify,), deadline, steps=QUICK_STEPS, restarts=QUICK_RESTARTS, accept=accept)
    if example is not None:
        return "sat", example
    canonical, sample = canonical_subject(subject, traced=False), torch.zeros(1, dtype=torch.int64)
    lead, root, no_limit = ROUNDING + 2 * canonical.slack, BranchAndBound(domains=1), torch.tensor([torch.inf])
    searcher = Searcher(canonical.subject, Norm.LINF, lead, root, no_limit, Deadline(deadline))
    session = searcher.session(sample)
    try:
        decided = session.decide(sample, session.region(sample, _HALF))
    except IncompatibleError:
        return "unbounded", None
    is_verified = decided is not None and bool(decided.verified[0])
    return ("unsat" if is_verified else "unknown"), None


def _attacked(
    subject: Subject, searches: Sequence[Callable[..., tuple[Tensor, Tensor]]], deadline: float, **effort: Any
) -> Tensor | None:
    """Return the counter-example of the first of the `searches` that ends with one; None where they find none in time."""
    model, data, seed = subject.classifier, subject.dataset, subject.seed
    for search in searches:
        is_broken, examples = search(model, data.inputs, data.targets, _HALF, seed, deadline=deadline, **effort)
        if bool(is_broken[0]):
            return examples[0]
    return None


def _decide_hard(subject: Subject, entry: VerificationEntry) -> tuple[str, Tensor | None]:
    """Return the word and the counter-example of the whole cascade."""
    from windtunnel.assessments.verification.assess import assess
    from windtunnel.records.result import tensor_in

    data = assess("vnnlib", entry, Budget(norm=Norm.LINF, epsilon=_HALF), subject).data
    verdict = int(tensor_in(data, "verdicts")[0])
    if verdict == Verdict.FALSIFIED:
        return "sat", tensor_in(data, "perturbed_inputs")
    if verdict == Verdict.VERIFIED:
        return "unsat", None
    return ("timeout" if bool(tensor_in(data, "timed_out")[0]) else "unknown"), None


_TIMEOUT = 60.0  # seconds, where the entry sets none


def export_instances(
    name: str, subject: Subject, norm: Norm, epsilon: float, timeout: float | None, folder: Path
) -> list[Path]:
    """Write model.onnx, a specification for each sample and instances.csv into `folder`, which is new or empty.

    timeout: seconds for one sample, of the entry. Raises UserError for a folder with files, IncompatibleError for a norm that
    is no box and for a model that has no graph.
    """
    from windtunnel.assessments.verification.marabou.queries import check_equivalence
    from windtunnel.boundary.models.load import export_onnx

    where = f"verification.{name}"
    subject.classifier.criterion.require_top_1(where, "VNN-LIB instances here say that the label is the largest logit")
    if norm is not Norm.LINF:
        raise IncompatibleError(f"{where}: VNN-LIB describes boxes; the budget is {norm}, set budget.norm: Linf")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; name another folder")
    (folder / "vnnlib").mkdir(parents=True, exist_ok=True)
    graph, classifier, data = folder / "model.onnx", subject.classifier, subject.dataset
    if classifier.onnx_path:
        shutil.copyfile(classifier.onnx_path, graph)
    else:
        export_onnx(classifier, graph)
    check_equivalence(classifier, graph, data.inputs)
    written = []
    for inputs, target, sample in zip(data.inputs.flatten(1).double(), data.targets.tolist(), data.ids, strict=True):
        path = folder / "vnnlib" / f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in sample)}.vnnlib"
        low, high = ((inputs + side * epsilon).clamp(0, 1) for side in (-1, 1))
        title = f"{name}: sample {sample} of class {target}, Linf {epsilon:g}, cut off at [0, 1]"
        path.write_text("\n".join(robustness(low, high, target, classifier.num_classes, title)) + "\n")
        written.append(path)
    lines = [f"model.onnx,vnnlib/{path.name},{timeout or _TIMEOUT:g}" for path in written]
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")
    return written
