"""What was found, counted and in words: for whoever shows it. Quick to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from windtunnel.core.contracts import Caveat
from windtunnel.core.findings import FindingRecord, Severity, Status
from windtunnel.core.metadata import CaveatRecord, Metadata


def counts(rows: Iterable[FindingRecord]) -> dict[str, int]:
    """How many checks ended how, by status; a flagged INFO check is no warning and has a count of its own."""
    found = {status.value: 0 for status in Status} | {"info": 0}
    for row in rows:
        info = row.status is Status.WARN and row.severity is Severity.INFO
        found["info" if info else row.status.value] += 1
    return found


def in_words(found: Mapping[str, int]) -> str:
    """`60 pass, 2 warn, 1 info, 28 not run`: the same line wherever the counts of a run are shown."""
    return ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in found.items() if number)


def overall(found: Mapping[str, int]) -> str:
    """`fail` for any hard failure, else `warn` for any warning, else `pass`; passing is necessary, not sufficient."""
    return "fail" if found["fail"] else "warn" if found["warn"] else "pass"


def caveats_of(rows: Iterable[FindingRecord], name: str) -> list[Caveat]:
    """The flagged checks that concern the assessment `name`, as caveats whose code is the check's id."""
    return [
        Caveat(
            row.id,
            f"Sanity check {row.id} ({row.severity}), {row.title}: {row.each.get(name) or row.reason or 'flagged'}. {row.remedy}",
            row.samples,
        )
        for row in rows
        if row.flagged and name in row.assessments
    ]


def with_caveats(metadata: Metadata, rows: Iterable[FindingRecord]) -> Metadata:
    """An assessment's metadata with the caveats of the checks that flagged it.

    The stage runs after the assessments and may not change their outputs, so whoever shows them adds these on reading.
    """
    mine = tuple(CaveatRecord(**asdict(caveat)) for caveat in caveats_of(rows, metadata.name))
    return metadata.model_copy(update={"caveats": (*metadata.caveats, *mine)}) if mine else metadata
