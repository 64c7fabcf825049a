"""Findings of the sanity checks, as reports/sanity/metadata.json keeps it: written and read as the same type, counted in one way."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from windtunnel.records.files import METADATA_FILE, read_block
from windtunnel.records.metadata import Options, SparseRecord, fitting


class Tier(StrEnum):
    """Cost of a check."""

    STORED = "T0"  # tensors and metadata on disk
    PASSES = "T1"  # forward and backward passes, and short attacks: the witness
    ATTACKS = "T2"  # attacks rerun on at most `sanity.samples` samples


class Severity(StrEnum):
    """Meaning of a flagged check."""

    HARD = "HARD"  # the number is not valid
    WARN = "WARN"  # robustness may be overestimated
    INFO = "INFO"  # worth knowing


class Status(StrEnum):
    """Outcome of a check. `not_run` is shown wherever results are: silence never reads as pass."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"
    NOT_RUN = "not_run"


class FindingRecord(SparseRecord):
    """The result of one check; empty fields are omitted. value: text where it is infinite.

    samples, assessments: whom it concerns. each: the reason by assessment, where `reason` speaks of the worst of them.
    """

    id: str
    title: str
    tier: Tier | None = None
    severity: Severity
    status: Status
    value: float | str | None = None
    threshold: float | None = None
    n: int | None = None
    samples: tuple[str, ...] = ()
    assessments: tuple[str, ...] = ()
    reason: str = ""
    each: dict[str, str] = Field(default_factory=dict)
    remedy: str = ""
    source: str = ""

    @property
    def flagged(self) -> bool:
        """True for a failure or a warning."""
        return self.status in (Status.FAIL, Status.WARN)

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.id[0]


def counts(rows: Iterable[FindingRecord]) -> dict[str, int]:
    """Count the checks by status; a flagged INFO check is no warning and has a count of its own."""
    by_status = {status.value: 0 for status in Status} | {"info": 0}
    for row in rows:
        info = row.status is Status.WARN and row.severity is Severity.INFO
        by_status["info" if info else row.status.value] += 1
    return by_status


def in_words(counts: Mapping[str, int]) -> str:
    """`60 pass, 2 warn, 1 info, 28 not run`: the same line wherever the counts of a run are shown."""
    return ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in counts.items() if number)


def overall(counts: Mapping[str, int]) -> str:
    """`fail` for any hard failure, else `warn` for any warning, else `pass`; passing is necessary, not sufficient."""
    return "fail" if counts["fail"] else "warn" if counts["warn"] else "pass"


class SanityOptions(Options):
    """`kwargs` of the metadata of the stage `sanity`. meaning: limits of what passed checks show."""

    profile: str = ""
    checks: tuple[FindingRecord, ...] = ()
    meaning: str = ""


def read_sanity(directory: Path) -> SanityOptions | None:
    """Return the findings of the stage; None where it never ran. Raises UserError, in one line, for a damaged file."""
    path = directory / METADATA_FILE
    if not path.is_file():
        return None
    return fitting(SanityOptions, read_block(path, "kwargs")["kwargs"], str(path), "what the sanity checks found")


def read_findings(directory: Path) -> tuple[FindingRecord, ...]:
    """Return the findings of the stage; none where it never ran. Raises UserError as `read_sanity`."""
    record = read_sanity(directory)
    return record.checks if record else ()
