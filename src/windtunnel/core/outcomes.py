"""What became of each sample under each metric's name: all that a later run needs for a paired comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import StrictInt

from windtunnel.core.contracts import AssessmentKind, Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json, write_json
from windtunnel.core.metadata import Value, fitting

OUTCOMES_FILE = "outcomes.json"
HELD, LOST, NOT_ASSESSED = "1", "0", "-"

# The metric of an assessment on which two models are paired sample by sample: of the first two kinds a share of samples
# (`Outcomes`), of the last a mean over many images of each (`Shares`).
PAIRED_METRIC = {
    AssessmentKind.EMPIRICAL_ATTACK: "adversarial_accuracy",
    AssessmentKind.FORMAL_VERIFICATION: "certified_accuracy",
    AssessmentKind.STATISTICAL_SAMPLING: "corrupted_accuracy",
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One metric: `held` has a character per sample (1, 0, or - for not assessed), and 1 / (1 or 0) is the metric.

    `protocol` is a digest of all that decides the outcome beside the model: samples, budget, algorithm and its settings.
    """

    protocol: str
    held: str

    @property
    def assessed(self) -> tuple[bool, ...]:
        """Of which samples the outcome is known."""
        return tuple(one != NOT_ASSESSED for one in self.held)

    def damage(self, n: int) -> str:
        """Why this is no row of `n` samples; empty where it is one."""
        whole = len(self.held) == n and not set(self.held) - {HELD, LOST, NOT_ASSESSED}
        return "" if whole else "a row is not one of 1, 0, - for each sample"


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
        """Of which samples the outcome is known."""
        return tuple(one is not None for one in self.right)

    def damage(self, n: int) -> str:
        """Why this is no row of `n` samples; empty where it is one."""
        whole = len(self.right) == n and all(one is None or 0 <= one <= self.images for one in self.right)
        return "" if whole else f"a row is not one of 0 to {self.images}, null for each sample"


@dataclass(frozen=True, slots=True)
class Record:
    """The outcomes of one model under every metric that pairs samples. `origin`: where it was fetched from."""

    model_digest: str
    samples: tuple[str, ...]
    outcomes: Mapping[str, Outcomes | Shares]
    origin: Mapping[str, Value] = field(default_factory=dict)


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON; equal records give equal bytes."""
    origin = {"origin": dict(record.origin)} if record.origin else {}
    rows: dict[str, Json] = {name: _block(row) for name, row in record.outcomes.items()}
    content = {**origin, "model_digest": record.model_digest, "samples": list(record.samples), "outcomes": rows}
    write_json(content, path)


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote. Raises UserError where it is missing or damaged."""
    record = fitting(Record, read_json(path), str(path), "a record of outcomes")
    n = len(record.samples)
    if bad := [why for row in record.outcomes.values() if (why := row.damage(n))]:
        raise UserError(f"{path}: not a record of outcomes ({bad[0]})")
    return record


def _block(row: Outcomes | Shares) -> dict[str, Json]:
    if isinstance(row, Outcomes):
        return {"protocol": row.protocol, "held": row.held}
    return {"protocol": row.protocol, "right": list(row.right), "images": row.images}
