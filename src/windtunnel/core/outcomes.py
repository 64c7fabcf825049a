"""What became of each sample, as yes or no under the metric's name: all that a later run needs for a paired comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json, write_json
from windtunnel.core.metadata import Value, fitting

OUTCOMES_FILE = "outcomes.json"
HELD, LOST, NOT_ASSESSED = "1", "0", "-"

# The metric of an assessment that is a share of samples; a corrupted accuracy is a mean over many images of each.
PAIRED_METRIC = {
    AssessmentKind.EMPIRICAL_ATTACK: "adversarial_accuracy",
    AssessmentKind.FORMAL_VERIFICATION: "certified_accuracy",
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One metric: `held` has a character per sample (1, 0, or - for not assessed), and 1 / (1 or 0) is the metric.

    `protocol` is a digest of all that decides the outcome beside the model: samples, budget, algorithm and its settings.
    """

    protocol: str
    held: str


@dataclass(frozen=True, slots=True)
class Record:
    """The outcomes of one model under every metric that is a share of samples. `origin`: where it was fetched from."""

    model_digest: str
    samples: tuple[str, ...]
    outcomes: Mapping[str, Outcomes]
    origin: Mapping[str, Value] = field(default_factory=dict)


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON; equal records give equal bytes."""
    rows = {name: {"protocol": row.protocol, "held": row.held} for name, row in record.outcomes.items()}
    origin = {"origin": dict(record.origin)} if record.origin else {}
    content = {**origin, "model_digest": record.model_digest, "samples": list(record.samples), "outcomes": rows}
    write_json(content, path)


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote. Raises UserError where it is missing or damaged."""
    record = fitting(Record, read_json(path), str(path), "a record of outcomes")
    codes = {HELD, LOST, NOT_ASSESSED}
    if any(len(row.held) != len(record.samples) or set(row.held) - codes for row in record.outcomes.values()):
        raise UserError(f"{path}: not a record of outcomes (a row is not one of 1, 0, - for each sample)")
    return record
