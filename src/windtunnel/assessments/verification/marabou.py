"""Marabou: a complete SMT solver, several samples in parallel, each in a process that a time-out really ends."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.verification.falsifier import ROUNDING
from windtunnel.assessments.verification.solver_process import Answer, Query, solve_query
from windtunnel.core.batches import progress_bar
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Verdict
from windtunnel.core.endings import deaf_children, no_main_module
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import Subject

# Seconds after its own time-out in which a solver may still answer before it is killed.
_GRACE = 5.0
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
    """The Linf boxes around the samples at `indices`, cut off at [0, 1]; other classes by their margin, the nearest first.

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
    onnx: Path, queries: Sequence[Query], timeout: float, workers: int, deadline: float, name: str
) -> list[Answer]:
    """Answer every query, `workers` at a time. A time-out, a crash or a kill of one solver costs that sample alone.

    Samples left, or at work, at `deadline` (time.monotonic(), inf for none) are UNKNOWN, reason `time budget`.
    """
    # A server that holds Marabou and no torch: its forks start in milliseconds, and forking torch threads can hang.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["windtunnel.assessments.verification.solver_server"])
    waiting, running, answers = list(queries), dict[Connection, tuple[BaseProcess, Query, float]](), list[Answer]()
    with progress_bar() as progress:
        task = progress.add_task(f"{name} Marabou", total=len(waiting))
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < deadline:
                query = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=solve_query, args=(str(onnx), query, min(timeout, query.seconds), theirs), daemon=True
                )
                with no_main_module(), deaf_children():
                    process.start()
                theirs.close()
                running[ours] = (process, query, time.monotonic())
            if time.monotonic() >= deadline:
                answers += [Answer(q.index, Verdict.UNKNOWN, 0.0, reason="time budget") for q in waiting]
                waiting.clear()
            for connection in [*wait(list(running), timeout=min(0.2, max(0.0, deadline - time.monotonic())))]:
                assert isinstance(connection, Connection)
                process, query, started = running.pop(connection)
                answers.append(_receive(connection, process, query, time.monotonic() - started))
            now = time.monotonic()
            for connection, (process, query, started) in list(running.items()):
                late = now - started > min(timeout, query.seconds) + _GRACE
                if late or now > deadline:
                    process.kill()
                    process.join()
                    connection.close()
                    running.pop(connection)
                    reason = "time-out" if late else "time budget"
                    answers.append(Answer(query.index, Verdict.UNKNOWN, now - started, reason=reason))
            progress.update(task, completed=len(answers))
    return sorted(answers, key=lambda answer: answer.index)


def _receive(connection: Connection, process: BaseProcess, query: Query, seconds: float) -> Answer:
    try:
        answer: Answer = connection.recv()
    except (EOFError, OSError):  # killed before, or while it spoke
        process.join()
        answer = Answer(
            query.index, Verdict.ERROR, seconds, reason=f"the solver ended without an answer (exit {process.exitcode})"
        )
    process.join()
    connection.close()
    return answer


def check_equivalence(classifier: Classifier, onnx: Path, inputs: Tensor, tolerance: float = 1e-4) -> None:
    """Refuse a graph that is not the model: logits on `inputs` may differ by `tolerance` of their largest spread.

    The spread of a sample is its largest less its smallest logit, so that scaled and shifted logits are held to the same.
    """
    from windtunnel.inputs.models.backends import OnnxModule

    if not len(inputs):
        return
    own = classifier.logits(inputs).double()
    spread = float((own.amax(1) - own.amin(1)).max())
    difference = float((OnnxModule(onnx)(inputs).double() - own).abs().max())
    if not difference <= tolerance * spread:
        raise IncompatibleError(
            f"the ONNX graph of {classifier.source} differs from the model by {difference:.3g} in a logit, which range "
            f"over {spread:.3g} ({tolerance:g} of that is allowed): what is verified of the one says nothing of the other"
        )


def replay(classifier: Classifier, onnx: Path, query: Query, example: np.ndarray, shape: tuple[int, ...]) -> str:
    """Why a counter-example is none, in words; empty where it is one: in the box, and misclassified by both runtimes."""
    from windtunnel.inputs.models.backends import OnnxModule

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
