"""Findings as they are kept in reports/sanity/metadata.json, read back: for whoever shows them. Quick to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

from windtunnel.core.contracts import Caveat, Json
from windtunnel.core.files import METADATA_FILE, read_block
from windtunnel.core.metadata import CaveatRecord, Metadata
from windtunnel.evaluation.sanity.check import Severity, Status

Row = Mapping[str, Json]


def read_sanity(directory: Path) -> dict[str, Json] | None:
    """metadata.json of the sanity stage; None where it never ran. Raises UserError for a damaged file."""
    path = directory / METADATA_FILE
    return read_block(path, "kwargs") if path.is_file() else None


def rows_in(sanity: Mapping[str, Json] | None) -> list[Row]:
    """The rows of kwargs.checks; none where the stage never ran or its metadata are of another version."""
    kwargs = sanity.get("kwargs") if sanity else None
    checks = kwargs.get("checks") if isinstance(kwargs, dict) else None
    return [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []


def is_flagged(row: Row) -> bool:
    """Whether a row is a failure or a warning."""
    return row.get("status") in (Status.FAIL, Status.WARN)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many checks ended how, by status; a flagged INFO check is no warning and has a count of its own."""
    found = {status.value: 0 for status in Status} | {"info": 0}
    for row in rows:
        info = row["status"] == Status.WARN and row["severity"] == Severity.INFO
        found["info" if info else str(row["status"])] += 1
    return found


def in_words(found: Mapping[str, int]) -> str:
    """`60 pass, 2 warn, 1 info, 28 not run`: the same line wherever the counts of a run are shown."""
    return ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in found.items() if number)


def overall(found: Mapping[str, int]) -> str:
    """`fail` for any hard failure, else `warn` for any warning, else `pass`; passing is necessary, not sufficient."""
    return "fail" if found["fail"] else "warn" if found["warn"] else "pass"


def caveats_of(rows: Iterable[Row], name: str) -> list[Caveat]:
    """The flagged checks that concern the assessment `name`, as caveats whose code is the check's id."""

    def reason(row: Row) -> str:
        each = row.get("each")
        return str((each.get(name) if isinstance(each, dict) else None) or row.get("reason", "flagged"))

    return [
        Caveat(
            str(row["id"]),
            f"Sanity check {row['id']} ({row['severity']}), {row['title']}: {reason(row)}. {row['remedy']}",
            tuple(map(str, cast(list[Json], row.get("samples", [])))),
        )
        for row in rows
        if is_flagged(row) and name in cast(list[Json], row.get("assessments", []))
    ]


def with_caveats(metadata: Metadata, rows: Iterable[Row]) -> Metadata:
    """An assessment's metadata with the caveats of the checks that flagged it.

    The stage runs after the assessments and may not change their outputs, so whoever shows them adds these on reading.
    """
    mine = tuple(CaveatRecord(**asdict(caveat)) for caveat in caveats_of(rows, metadata.name))
    return metadata.model_copy(update={"caveats": (*metadata.caveats, *mine)}) if mine else metadata
