"""What became of each sample under each metric's name: all that a later run needs for a paired comparison."""

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


@dataclass(frozen=True, slots=True)
class Shares:
    """One metric: of the `images` made of each sample, how many were classified rightly; None for not assessed.

    The mean of right / images over the samples is the metric. `protocol` as of `Outcomes`.
    """

    protocol: str
    right: tuple[int | None, ...]
    images: int

    @property
    def assessed(self) -> tuple[bool, ...]:
        """Of which samples the outcome is known."""
        return tuple(one is not None for one in self.right)


@dataclass(frozen=True, slots=True)
class Record:
    """The outcomes of one model under every metric that pairs samples. `origin`: where it was fetched from."""

    model_digest: str
    samples: tuple[str, ...]
    outcomes: Mapping[str, Outcomes | Shares]
    origin: Mapping[str, Json] = field(default_factory=dict)


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON; equal records give equal bytes."""
    origin = {"origin": dict(record.origin)} if record.origin else {}
    rows: dict[str, Json] = {name: _block(row) for name, row in record.outcomes.items()}
    content = {**origin, "model_digest": record.model_digest, "samples": list(record.samples), "outcomes": rows}
    write_json(content, path)


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote. Raises UserError where it is missing or damaged."""
    content = read_json(path)
    try:
        block = cast(dict[str, Json], content)
        rows = cast(dict[str, dict[str, Json]], block["outcomes"])
        samples = tuple(str(name) for name in cast(Sequence[Json], block["samples"]))
        outcomes = {name: _row(row, len(samples)) for name, row in rows.items()}
        return Record(str(block["model_digest"]), samples, outcomes, cast(dict[str, Json], block.get("origin", {})))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path}: is no record of outcomes ({type(error).__name__}: {error})") from error


def _block(row: Outcomes | Shares) -> dict[str, Json]:
    if isinstance(row, Outcomes):
        return {"protocol": row.protocol, "held": row.held}
    return {"protocol": row.protocol, "right": list(row.right), "images": row.images}


def _row(block: Mapping[str, Json], n: int) -> Outcomes | Shares:
    """One metric of n samples. Raises ValueError where it is damaged."""
    protocol = str(block["protocol"])
    if "held" in block:
        held = str(block["held"])
        if len(held) != n or set(held) - {HELD, LOST, NOT_ASSESSED}:
            raise ValueError("a row is not one of 1, 0, - for each sample")
        return Outcomes(protocol, held)
    right, images = cast(list[int | None], block["right"]), cast(int, block["images"])
    if len(right) != n or any(one is not None and not 0 <= one <= images for one in right):
        raise ValueError(f"a row is not one of 0 to {images}, null for each sample")
    return Shares(protocol, tuple(right), images)
