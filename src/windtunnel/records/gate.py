"""Records of the gate: its decision (gate.json), and the outcome of each sample, which a later run is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import StrictInt, TypeAdapter

from windtunnel.core.contracts import AssessmentKind, Json, Norm
from windtunnel.core.errors import UserError
from windtunnel.records.files import plain_block, read_block, read_json, write_json
from windtunnel.records.metadata import SparseRecord, fitting

OUTCOMES_FILE = "outcomes.json"
HELD, LOST, NOT_ASSESSED = "1", "0", "-"

# The metric of an assessment on which two models are paired sample by sample: of the first two kinds a share of samples
# (`Outcomes`), of the last a mean over many images of each (`Shares`).
PAIRED_METRIC = {
    AssessmentKind.EMPIRICAL_ATTACK: "adversarial_accuracy",
    AssessmentKind.FORMAL_VERIFICATION: "certified_accuracy",
    AssessmentKind.STATISTICAL_SAMPLING: "corrupted_accuracy",
}


class Origin(SparseRecord):
    """The version in the registry that outcomes were fetched for. reassessed: it was assessed once more, under other params."""

    model: str = ""
    version: str = ""
    run_id: str = ""
    reassessed: bool = False


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


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One metric: `held` has a character per sample (1, 0, or - for not assessed), and 1 / (1 or 0) is the metric.

    `protocol` is a digest of everything but the model that decides the outcome: samples, budget, algorithm and its settings.
    norm, epsilon: the ball that it is of; None for no ball, and for no bound.
    """

    protocol: str
    held: str
    norm: Norm | None = None
    epsilon: float | None = None

    @property
    def assessed(self) -> tuple[bool, ...]:
        """True for each sample whose outcome is known."""
        return tuple(outcome != NOT_ASSESSED for outcome in self.held)

    def damage(self, n: int) -> str:
        """Why this is no row of `n` samples; empty where it is one."""
        is_valid = len(self.held) == n and not set(self.held) - {HELD, LOST, NOT_ASSESSED}
        return "" if is_valid else "a row is not one of 1, 0, - for each sample"


@dataclass(frozen=True, slots=True)
class Shares:
    """One metric: of the `images` made of each sample, how many were classified rightly; None for not assessed.

    The mean of right / images over the samples is the metric. `protocol` as of `Outcomes`.
    """

    protocol: str
    right: tuple[StrictInt | None, ...]
    images: int

    @property
    def assessed(self) -> tuple[bool, ...]:
        """True for each sample whose outcome is known."""
        return tuple(count is not None for count in self.right)

    def damage(self, n: int) -> str:
        """Why this is no row of `n` samples; empty where it is one."""
        is_valid = len(self.right) == n and all(count is None or 0 <= count <= self.images for count in self.right)
        return "" if is_valid else f"a row is not one of 0 to {self.images}, null for each sample"


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """The outcomes of one model under every metric that pairs samples. `origin`: where it was fetched from."""

    model_digest: str
    samples: tuple[str, ...]
    outcomes: Mapping[str, Outcomes | Shares]
    origin: Origin | None = None


def write_record(record: OutcomeRecord, path: Path) -> None:
    """Write a record as JSON; equal records give equal bytes."""
    content = TypeAdapter(OutcomeRecord).dump_python(record, mode="json")
    origin = content.pop("origin")
    write_json({**({"origin": origin} if origin else {}), **content}, path)


def read_record(path: Path) -> OutcomeRecord:
    """Read what `write_record` wrote. Raises UserError where it is missing or damaged."""
    record = fitting(OutcomeRecord, read_json(path), str(path), "a record of outcomes")
    n = len(record.samples)
    if bad := [why for row in record.outcomes.values() if (why := row.damage(n))]:
        raise UserError(f"{path}: not a record of outcomes ({bad[0]})")
    return record
