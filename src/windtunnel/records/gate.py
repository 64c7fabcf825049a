"""The decision of the gate: gate.json is written and read as this type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from windtunnel.core.contracts import Json
from windtunnel.records.files import plain_block, read_block
from windtunnel.records.metadata import fitting
from windtunnel.records.outcomes import Origin


class Decision(StrEnum):
    """Decision of the gate about a model. `promoted` applies only to a model in the registry."""

    PASSED = "passed"
    FAILED = "failed"
    UNSOUND = "unsound"


EXIT_CODE = {Decision.PASSED: 0, Decision.FAILED: 10, Decision.UNSOUND: 20}


class ConditionStatus(StrEnum):
    """The result of one condition; the values are the words that a reader sees."""

    HOLDS = "holds"
    FAILS = "fails"
    REFUSED = "refused"  # the run has no estimate of the metric
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: threshold, value, status, and the reason in words.

    `value` is None where there is nothing to evaluate; `bound` says on which side of `threshold` it must be. status: holds
    or fails where it is not given; a condition that does not apply holds, one that is refused does not. basis: the region and the
    samples that the value is of, in words.
    """

    name: str
    value: float | None
    threshold: float
    interval: tuple[float, float] | None
    holds: bool
    bound: str = "at least"
    reason: str = ""
    status: ConditionStatus | None = None
    basis: str = ""

    def __post_init__(self) -> None:
        """Derive the status from `holds`: a gate.json of an older version has none."""
        if self.status is None:
            object.__setattr__(self, "status", ConditionStatus.HOLDS if self.holds else ConditionStatus.FAILS)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The decision with all it rests on. `champion`: which one it was compared with, None where there is none."""

    decision: Decision
    conditions: tuple[Condition, ...]
    hard_failures: tuple[str, ...] = ()
    champion: Origin | None = None

    @property
    def is_empty(self) -> bool:
        """True if no condition is set."""
        return not self.conditions

    @property
    def exit_code(self) -> int:
        """The exit code of `windtunnel gate`."""
        return EXIT_CODE[self.decision]


def gate_json(result: GateResult) -> dict[str, Json]:
    """Return the content of gate.json."""
    content = TypeAdapter(GateResult).dump_python(result, mode="json")
    return plain_block({"decision": content["decision"], "exit_code": result.exit_code, **content})


def read_gate(path: Path) -> GateResult:
    """Read gate.json. Raises UserError, in one line, where it is missing or damaged."""
    return fitting(GateResult, read_block(path), str(path), "a result of the gate")
