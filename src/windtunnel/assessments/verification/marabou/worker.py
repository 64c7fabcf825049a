"""Code of a solver's process: the queries of one sample to Marabou. Imports no torch, so that it starts quickly."""

import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.core.contracts import Verdict

# The search for a logit's bound starts this far from its value and doubles until the bound is verified.
_FIRST_STEP, _MAX_STEP = 0.5, 512.0
_BOUND_TOLERANCE = 0.05  # logits
_READING_TOLERANCE = 1e-3  # of the largest logit


@dataclass(frozen=True, slots=True)
class Query:
    """One sample for the solver: is there an x in [lower, upper] where some of `other_classes` leads `target` by `margin`?

    lower, upper, clean: float32, flat. logits: (K,), of the clean sample. other classes: in the order in which they are asked about,
    each in a query of its own where `one_by_one`, all in one disjunction otherwise. bounds: bound every logit too. seconds: what
    the sample has left, where that is less than every query has.
    """

    index: int
    lower: np.ndarray
    upper: np.ndarray
    clean: np.ndarray
    target: int
    logits: np.ndarray
    other_classes: tuple[int, ...]
    margin: float = 0.0
    one_by_one: bool = False
    bounds: bool = False
    seconds: float = float("inf")


@dataclass(frozen=True, slots=True)
class SolverAnswer:
    """The solver's word on one sample. counter_example: float32, flat, for FALSIFIED; reason: why not decided.

    lower, upper: float32 (1, K), verified bounds of the logits where they were asked for; NaN where none was verified.
    """

    index: int
    verdict: Verdict
    seconds: float
    counter_example: np.ndarray | None = None
    reason: str = ""
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


@dataclass(slots=True)
class Solve:
    """A unit of work: one query to Marabou about a graph (an ONNX file), in `timeout` seconds at most."""

    graph: bytes
    timeout: float
    deadline: Deadline

    def __call__(self, query: Query) -> SolverAnswer:
        """Return the answer; whatever Marabou raises is this sample's error, with its reason, and no other's."""
        started, before = time.monotonic(), Path.cwd()
        ends = min(started + min(self.timeout, query.seconds), self.deadline.here())
        if ends <= started:
            return SolverAnswer(query.index, Verdict.UNKNOWN, 0.0, reason="time budget")
        lower = upper = None
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder, "model.onnx")
            graph.write_bytes(self.graph)
            os.chdir(folder)  # Marabou leaves `failedMarabouQuery.ipq` in the current directory
            try:
                solver = _Solver(str(graph), query, ends)
                verdict, example, reason = solver.decide()
                if query.bounds:
                    lower, upper = solver.logit_bounds()
            except Exception as error:  # its parser fails with many kinds, AssertionError among them
                verdict, example, reason = Verdict.ERROR, None, _reason(error)
            finally:
                os.chdir(before)
        if verdict is Verdict.UNKNOWN and time.monotonic() > self.deadline.here():
            reason = "time budget"
        return SolverAnswer(query.index, verdict, time.monotonic() - started, example, reason, lower, upper)


def _reason(error: Exception) -> str:
    """Return the message of what Marabou raised; where it says nothing, the rule of its parser in which it did.

    `AssertionError in mulEquations`.
    """
    rule = traceback.extract_tb(error.__traceback__)[-1].name
    return f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} in {rule}"


class _Solver:
    def __init__(self, onnx: str, query: Query, deadline: float) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # maraboupy regrets the absence of tensorflow, in every process
            from maraboupy import Marabou

        self._query, self._deadline, self._marabou = query, deadline, Marabou
        self._network: Any = Marabou.read_onnx(onnx)  # maraboupy has no types
        self._inputs = self._network.inputVars[0].flatten()
        self._outputs = self._network.outputVars[0].flatten()
        # The parser sets bounds of its own, such as 0 below a ReLU; every query starts from them.
        self._known = (dict(self._network.lowerBounds), dict(self._network.upperBounds))

    def decide(self) -> tuple[Verdict, np.ndarray | None, str]:
        """Return whether some other class can lead, with the point where it does, and why that is not known."""
        query, others = self._query, self._query.other_classes
        self._check_reading(self._read(query.clean))
        groups = [(other_class,) for other_class in others] if query.one_by_one else [others]
        undecided = ""
        for group in groups:
            leads = [[self._at_least({other_class: 1.0, query.target: -1.0}, query.margin)] for other_class in group]
            code, values = self._solve(leads)
            if code == "sat":
                return Verdict.FALSIFIED, np.array([values[v] for v in self._inputs], dtype=np.float32), ""
            if code != "unsat":  # another class may still be shown to lead
                undecided = "time-out" if "TIMEOUT" in code.upper() else code
        return (Verdict.UNKNOWN, None, undecided) if undecided else (Verdict.VERIFIED, None, "")

    def _read(self, point: np.ndarray) -> dict[int, float]:
        """Return the values of all variables at a point; empty where Marabou does not say them."""
        code, values = self._solve([], point, point)
        return values if code == "sat" else {}

    def _check_reading(self, read: Mapping[int, float]) -> None:
        """Raise ValueError where the graph as Marabou reads it is not the model: its parser skips what it does not know.

        (Marabou 2.0.0 overlooks the padding of max pooling, for one.) read: at the clean sample.
        """
        if read:
            off = float(np.abs(np.array([read[v] for v in self._outputs]) - self._query.logits).max())
            if off > _READING_TOLERANCE * max(1.0, float(np.abs(self._query.logits).max())):
                raise ValueError(f"Marabou reads another graph: a logit of the clean sample differs by {off:.3g}")

    def logit_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper), float32 (1, K): the tightest bounds that were verified in the time left."""
        ends = [[side * self._largest(logit, side) for logit in range(len(self._outputs))] for side in (-1.0, 1.0)]
        lower, upper = (np.array([row], dtype=np.float32) for row in ends)
        return lower, upper

    def _largest(self, logit: int, side: float) -> float:
        """Return a verified upper bound of side * logit over the box; NaN where none was verified."""
        attained = side * float(self._query.logits[logit])  # a value that is taken
        step, verified = _FIRST_STEP, float("nan")
        while step <= _MAX_STEP if np.isnan(verified) else verified - attained > _BOUND_TOLERANCE:
            probe = attained + step if np.isnan(verified) else (attained + verified) / 2
            code, _ = self._solve([[self._at_least({logit: side}, probe)]])
            if code == "unsat":
                verified = probe
            elif code != "sat":
                break
            elif np.isnan(verified):
                step *= 2
            else:
                attained = probe
        return verified

    def _at_least(self, terms: dict[int, float], scalar: float) -> object:
        """Return the constraint: the sum of weight * logit is at least `scalar`."""
        from maraboupy import MarabouCore
        from maraboupy.MarabouUtils import Equation

        equation = Equation(MarabouCore.Equation.GE)
        for logit, weight in terms.items():
            equation.addAddend(weight, self._outputs[logit])
        equation.setScalar(scalar)
        return equation

    def _solve(
        self, alternatives: Sequence[Sequence[object]], lower: np.ndarray | None = None, upper: np.ndarray | None = None
    ) -> tuple[str, dict[int, float]]:
        """(Marabou's word, values): is there a point of the box, the query's own or another, where an alternative holds?"""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            return "TIMEOUT", {}
        network, query = self._network, self._query
        network.clearProperty()
        network.disjunctionList = []
        network.lowerBounds.update(self._known[0])
        network.upperBounds.update(self._known[1])
        box = (query.lower if lower is None else lower, query.upper if upper is None else upper)
        for variable, low, high in zip(self._inputs, *box, strict=True):
            network.setLowerBound(variable, float(low))
            network.setUpperBound(variable, float(high))
        if len(alternatives) == 1:
            for equation in alternatives[0]:
                network.addEquation(equation, isProperty=True)
        elif alternatives:
            network.addDisjunctionConstraint([list(alternative) for alternative in alternatives])
        # Marabou counts whole seconds.
        options = self._marabou.createOptions(verbosity=0, timeoutInSeconds=max(1, int(seconds)))
        code, values, _ = network.solve(verbose=False, options=options)
        return str(code), values
