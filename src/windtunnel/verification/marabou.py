"""Marabou: a complete SMT solver, several samples in parallel, each in a process that a time-out really ends."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windtunnel.core.batches import progress_bar
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import IncompatibleError

# A solver strictly above 0 would find no tie; a rival that draws level has beaten the proof all the same.
_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Query:
    """One sample for the solver: is there an x in [lower, upper] whose `target` some rival reaches?"""

    index: int
    lower: np.ndarray
    upper: np.ndarray
    target: int
    num_classes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's word on one sample. counter_example: float32, flat, for FALSIFIED; reason: why not decided."""

    index: int
    verdict: Verdict
    seconds: float
    counter_example: np.ndarray | None = None
    reason: str = ""


def queries_of(
    inputs: Tensor, targets: Tensor, epsilon: float, num_classes: int, indices: Sequence[int]
) -> list[Query]:
    """The Linf boxes around `inputs`, cut off at [0, 1], for the samples at `indices`."""
    low, high = (inputs - epsilon).clamp(0, 1), (inputs + epsilon).clamp(0, 1)
    return [
        Query(i, low[i].flatten().numpy(), high[i].flatten().numpy(), int(targets[i]), num_classes) for i in indices
    ]


def solve_all(
    onnx: Path, queries: Sequence[Query], timeout: float, workers: int, time_budget: float | None, name: str
) -> list[Answer]:
    """Answer every query, `workers` at a time. A time-out, a crash or a kill of one solver costs that sample alone.

    Samples left when `time_budget` seconds are over are UNKNOWN, reason `time budget`.
    """
    context = mp.get_context("spawn")  # forking a process that runs torch threads can hang
    waiting, running, answers = list(queries), dict[Connection, tuple[BaseProcess, Query, float]](), list[Answer]()
    deadline = time.monotonic() + time_budget if time_budget else float("inf")
    with progress_bar() as progress:
        task = progress.add_task(f"{name} Marabou", total=len(waiting))
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < deadline:
                query = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_solve, args=(str(onnx), query, timeout, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (process, query, time.monotonic())
            if time.monotonic() >= deadline:
                answers += [Answer(q.index, Verdict.UNKNOWN, 0.0, reason="time budget") for q in waiting]
                progress.advance(task, len(waiting))
                waiting.clear()
            for connection in [*wait(list(running), timeout=0.2)]:
                assert isinstance(connection, Connection)
                process, query, started = running.pop(connection)
                answers.append(_receive(connection, process, query, time.monotonic() - started))
                progress.advance(task)
            for connection, (process, query, started) in list(running.items()):
                if time.monotonic() - started > timeout + _GRACE:
                    process.kill()
                    process.join()
                    running.pop(connection)
                    answers.append(Answer(query.index, Verdict.UNKNOWN, time.monotonic() - started, reason="time-out"))
                    progress.advance(task)
    return sorted(answers, key=lambda answer: answer.index)


def _receive(connection: Connection, process: BaseProcess, query: Query, seconds: float) -> Answer:
    try:
        answer: Answer = connection.recv()
    except EOFError:
        process.join()
        answer = Answer(
            query.index, Verdict.ERROR, seconds, reason=f"the solver ended without an answer (exit {process.exitcode})"
        )
    process.join()
    connection.close()
    return answer


def _solve(onnx: str, query: Query, timeout: float, out: Connection) -> None:
    """In a process of its own: one disjunction over all rivals."""
    started = time.monotonic()
    try:
        verdict, example, reason = _ask(onnx, query, timeout)
    except Exception as error:  # whatever Marabou raises is this sample's error, with its reason, and no other's
        verdict, example, reason = Verdict.ERROR, None, f"{type(error).__name__}: {error}"
    out.send(Answer(query.index, verdict, time.monotonic() - started, example, reason))
    out.close()


def _ask(onnx: str, query: Query, timeout: float) -> tuple[Verdict, np.ndarray | None, str]:
    from maraboupy import Marabou, MarabouCore
    from maraboupy.MarabouUtils import Equation

    network = Marabou.read_onnx(onnx)
    variables = network.inputVars[0].flatten()
    outputs = network.outputVars[0].flatten()
    for variable, low, high in zip(variables, query.lower, query.upper, strict=True):
        network.setLowerBound(variable, float(low))
        network.setUpperBound(variable, float(high))
    alternatives = []
    for rival in range(query.num_classes):
        if rival != query.target:
            equation = Equation(MarabouCore.Equation.GE)  # logit(rival) - logit(target) >= 0
            equation.addAddend(1.0, outputs[rival])
            equation.addAddend(-1.0, outputs[query.target])
            equation.setScalar(0.0)
            alternatives.append([equation])
    network.addDisjunctionConstraint(alternatives)
    options = Marabou.createOptions(verbosity=0, timeoutInSeconds=max(1, int(timeout)))
    code, values, _ = network.solve(verbose=False, options=options)
    if code == "unsat":
        return Verdict.VERIFIED, None, ""
    if code == "sat":
        return Verdict.FALSIFIED, np.array([values[v] for v in variables], dtype=np.float32), ""
    return Verdict.UNKNOWN, None, "time-out" if "TIMEOUT" in code.upper() else code


def check_equivalence(classifier: Classifier, onnx: Path, inputs: Tensor, tolerance: float = 1e-4) -> None:
    """Refuse a graph that is not the model: the largest logit difference on `inputs` must be within `tolerance`."""
    from windtunnel.models.backends import OnnxModule

    difference = float((OnnxModule(onnx)(inputs) - classifier.logits(inputs)).abs().max()) if len(inputs) else 0.0
    if not difference <= tolerance:
        raise IncompatibleError(
            f"the ONNX graph of {classifier.source} differs from the model by {difference:.3g} in a logit "
            f"({tolerance:g} allowed): what is proved of the one says nothing of the other"
        )


def replay(classifier: Classifier, onnx: Path, query: Query, example: np.ndarray, shape: tuple[int, ...]) -> str:
    """Why a counter-example is none, in words; empty where it is one: in the box, and misclassified by both runtimes."""
    from windtunnel.models.backends import OnnxModule

    point = torch.from_numpy(example).view(1, *shape)
    if (example < query.lower - 1e-6).any() or (example > query.upper + 1e-6).any():
        return "the counter-example lies outside the box"
    inside = point.clamp(0, 1)
    predicted = int(classifier.predict(inside)[0]), int(OnnxModule(onnx)(inside).argmax(1)[0])
    if query.target in predicted:
        return f"the counter-example is classified as {predicted[0]} by torch and {predicted[1]} by onnxruntime"
    return ""
