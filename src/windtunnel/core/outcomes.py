"""What became of each sample, as yes or no under the metric's name: all that a later run needs for a paired comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from windtunnel.core.contracts import AssessmentKind, Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json, write_json

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
    origin: Mapping[str, Json] = field(default_factory=dict)


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON; equal records give equal bytes."""
    rows = {name: {"protocol": row.protocol, "held": row.held} for name, row in record.outcomes.items()}
    origin = {"origin": dict(record.origin)} if record.origin else {}
    content = {**origin, "model_digest": record.model_digest, "samples": list(record.samples), "outcomes": rows}
    write_json(content, path)


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote. Raises UserError where it is missing or damaged."""
    content = read_json(path)
    try:
        block = cast(dict[str, Json], content)
        rows = cast(dict[str, dict[str, str]], block["outcomes"])
        samples = tuple(str(name) for name in cast(Sequence[Json], block["samples"]))
        outcomes = {name: Outcomes(row["protocol"], row["held"]) for name, row in rows.items()}
        record = Record(str(block["model_digest"]), samples, outcomes, cast(dict[str, Json], block.get("origin", {})))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no record of outcomes ({type(error).__name__}: {error})") from error
    if any(len(row.held) != len(samples) or set(row.held) - {HELD, LOST, NOT_ASSESSED} for row in outcomes.values()):
        raise UserError(f"{path}: is no record of outcomes (a row is not one of 1, 0, - for each sample)")
    return record
