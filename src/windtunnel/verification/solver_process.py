"""What runs in a solver's own process: one query to Marabou. Imports no torch, so that a process starts in a moment."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from windtunnel.core.contracts import Verdict


@dataclass(frozen=True, slots=True)
class Query:
    """One sample for the solver: is there an x in [lower, upper] where some rival leads `target` by `margin`?"""

    index: int
    lower: np.ndarray
    upper: np.ndarray
    target: int
    num_classes: int
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's word on one sample. counter_example: float32, flat, for FALSIFIED; reason: why not decided."""

    index: int
    verdict: Verdict
    seconds: float
    counter_example: np.ndarray | None = None
    reason: str = ""


def solve_query(onnx: str, query: Query, timeout: float, out: Connection) -> None:
    """In a process of its own: one disjunction over all rivals."""
    started = time.monotonic()
    try:
        verdict, example, reason = _ask(onnx, query, timeout)
    except Exception as error:  # whatever Marabou raises is this sample's error, with its reason, and no other's
        verdict, example, reason = Verdict.ERROR, None, f"{type(error).__name__}: {error}"
    out.send(Answer(query.index, verdict, time.monotonic() - started, example, reason))
    out.close()


def _ask(onnx: str, query: Query, timeout: float) -> tuple[Verdict, np.ndarray | None, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # maraboupy regrets the absence of tensorflow, in every process
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
            equation = Equation(MarabouCore.Equation.GE)  # logit(rival) - logit(target) >= margin
            equation.addAddend(1.0, outputs[rival])
            equation.addAddend(-1.0, outputs[query.target])
            equation.setScalar(query.margin)
            alternatives.append([equation])
    network.addDisjunctionConstraint(alternatives)
    options = Marabou.createOptions(verbosity=0, timeoutInSeconds=max(1, int(timeout)))
    code, values, _ = network.solve(verbose=False, options=options)
    if code == "unsat":
        return Verdict.VERIFIED, None, ""
    if code == "sat":
        return Verdict.FALSIFIED, np.array([values[v] for v in variables], dtype=np.float32), ""
    return Verdict.UNKNOWN, None, "time-out" if "TIMEOUT" in code.upper() else code
