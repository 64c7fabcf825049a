"""Marabou: a complete SMT solver, several samples in parallel, in processes that a time-out really ends."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsifier import ROUNDING
from windtunnel.assessments.verification.marabou.worker import Query, Solve, SolverAnswer
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.machine import free_memory
from windtunnel.core.subject import Subject
from windtunnel.records.files import read_own
from windtunnel.runtime.batch_runner import Checkpoint
from windtunnel.runtime.executors import DEFAULT_WORKERS, MOST_WORKERS, Executor, executor
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.placement import share_of_processors
from windtunnel.runtime.progress import progress_bar

# Seconds after its own time-out in which a solver may still answer before it is killed.
GRACE = 5.0
_SOLVER_BYTES = 2**31  # free memory for which a further solver is started without being asked for
# Marabou's tolerances are absolute: its preprocessor takes a variable for fixed whose bounds are 1e-5 apart, its simplex
# compares with 1e-8. All values of the graph it is given are near 1 (see canonical.scale), and a certificate says that
# no other class comes nearer to the target than this, in units of the logits.
MARABOU_TOLERANCE = 1e-4
# The solver may answer with a point where another class nearly draws level and the class is the target's after all.
# Then it is asked for one with a lead that float32 cannot miss.
CLEAR_LEAD = 1e-3


def box(inputs: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(lower, upper): the Linf ball of `epsilon` cut off at [0, 1], shaped as `inputs`."""
    return (inputs - epsilon).clamp(0, 1), (inputs + epsilon).clamp(0, 1)


def queries_of(
    subject: Subject, epsilon: float, indices: Tensor, *, one_by_one: bool, slack: float = 0.0
) -> list[Query]:
    """Return the Linf boxes around the samples at `indices`, cut off at [0, 1]; other classes by their margin, the nearest first.

    What is asked for is another class within Marabou's tolerance and twice `slack` of the target: where there is none, that proves.
    """
    data = subject.dataset
    low, high = box(data.inputs, epsilon)
    queries = []
    for i in indices.tolist():
        target = int(data.targets[i])
        nearest = subject.clean_logits[i].argsort(descending=True, stable=True).tolist()
        queries.append(
            Query(
                index=i,
                lower=low[i].flatten().numpy(),
                upper=high[i].flatten().numpy(),
                clean=data.inputs[i].flatten().numpy(),
                target=target,
                logits=subject.clean_logits[i].numpy(),
                other_classes=tuple(other_class for other_class in nearest if other_class != target),
                margin=-(MARABOU_TOLERANCE + 2 * slack),
                one_by_one=one_by_one,
            )
        )
    return queries


def solve_all(
    onnx: Path,
    queries: Sequence[Query],
    timeout: float,
    deadline: float,
    name: str,
    checkpoint: Checkpoint | None = None,
) -> list[SolverAnswer]:
    """Answer every query wherever the executor says, never in this process: a solver that hangs can be ended.

    A crash or a kill of one solver costs that sample alone, which is tried again. Samples left, or at work, at `deadline`
    (time.monotonic(), inf for none) are UNKNOWN, reason `time budget`. What is verified or falsified is kept in `checkpoint`.
    """
    affordable = min(share_of_processors(), MOST_WORKERS, free_memory() // _SOLVER_BYTES)
    workers = executor(max(DEFAULT_WORKERS, affordable))
    workforce = Executor("processes", 1) if workers.kind == "here" else workers
    cached = {query.index: checkpoint.get(query.index) for query in queries} if checkpoint else {}
    answers = [_answer(index, tensors) for index, tensors in cached.items() if tensors]
    answered = {answer.index for answer in answers}
    todo = [query for query in queries if query.index not in answered]
    work = Solve(read_own(onnx), timeout, Deadline(deadline))

    def limit(query: Query) -> float:
        return max(0.0, min(timeout, query.seconds, deadline - time.monotonic())) + GRACE

    with progress_bar() as progress:
        task = progress.add_task(f"{name} Marabou", total=len(queries), completed=len(answered))
        for position, result in workforce.results(work, todo, name, limit):
            answer = _given_up(todo[position], result, timeout, deadline) if isinstance(result, Lost) else result
            if checkpoint and answer.verdict in {Verdict.VERIFIED, Verdict.FALSIFIED}:
                checkpoint.put(answer.index, _tensors(answer))
            answers.append(answer)
            progress.advance(task)
    return sorted(answers, key=lambda answer: answer.index)


def _tensors(answer: SolverAnswer) -> dict[str, Tensor]:
    """Return a decided answer as it is kept."""
    arrays = {"example": answer.counter_example, "lower": answer.lower, "upper": answer.upper}
    numbers = torch.tensor([int(answer.verdict), answer.seconds], dtype=torch.float64)
    return {"numbers": numbers, **{key: torch.from_numpy(a) for key, a in arrays.items() if a is not None}}


def _answer(index: int, cached: Mapping[str, Tensor]) -> SolverAnswer:
    verdict, seconds = cached["numbers"].tolist()
    example, lower, upper = (cached[key].numpy() if key in cached else None for key in ("example", "lower", "upper"))
    return SolverAnswer(index, Verdict(int(verdict)), seconds, example, "", lower, upper)


def _given_up(query: Query, lost: Lost, timeout: float, deadline: float) -> SolverAnswer:
    if not lost.hung:
        return SolverAnswer(
            query.index, Verdict.ERROR, 0.0, reason=f"the solver ended without an answer: {lost.reason}"
        )
    reason = "time budget" if time.monotonic() > deadline else "time-out"
    return SolverAnswer(query.index, Verdict.UNKNOWN, min(timeout, query.seconds), reason=reason)


def check_equivalence(classifier: Classifier, onnx: Path, inputs: Tensor, tolerance: float = 1e-4) -> float:
    """Return the largest difference of a logit on `inputs`; refuse a graph where it is above `tolerance` of their largest spread.

    The spread of a sample is its largest less its smallest logit, so that scaled and shifted logits are held to the same.
    """
    from windtunnel.boundary.models.backends import OnnxModule

    if not len(inputs):
        return 0.0
    logits = classifier.logits(inputs).double()
    spread = float((logits.amax(1) - logits.amin(1)).max())
    difference = float((OnnxModule(onnx)(inputs).double() - logits).abs().max())
    if not difference <= tolerance * spread:
        raise IncompatibleError(
            f"the ONNX graph of {classifier.source} differs from the model by {difference:.3g} in a logit, which range "
            f"over {spread:.3g} ({tolerance:g} of that is allowed): what is verified of the one says nothing of the other"
        )
    return difference


def replay(classifier: Classifier, onnx: Path, query: Query, example: np.ndarray, shape: tuple[int, ...]) -> str:
    """Why a counter-example is none, in words; empty where it is one: in the box, and misclassified by both runtimes."""
    from windtunnel.boundary.models.backends import OnnxModule

    point = torch.from_numpy(example).view(1, *shape)
    if (example < query.lower - 1e-6).any() or (example > query.upper + 1e-6).any():
        return "the counter-example lies outside the box"
    inside = point.clamp(0, 1)
    for runtime, logits in (("torch", classifier.logits(inside)), ("onnxruntime", OnnxModule(onnx)(inside))):
        other_classes = logits.scatter(1, torch.tensor([[query.target]]), -torch.inf).amax()
        lead = float(other_classes - logits[0, query.target])
        if not lead > ROUNDING:
            return f"no other class leads at the counter-example in {runtime} by more than rounding ({lead:.2g})"
    return ""
