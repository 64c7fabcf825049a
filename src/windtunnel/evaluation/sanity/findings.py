"""Convert findings into caveats of the assessments concerned. Quick to import."""

from collections.abc import Iterable
from dataclasses import asdict

from windtunnel.core.contracts import Caveat
from windtunnel.records.findings import FindingRecord
from windtunnel.records.metadata import CaveatRecord, Metadata


def caveats_of(rows: Iterable[FindingRecord], name: str) -> list[Caveat]:
    """Return the flagged checks that concern the assessment `name`, as caveats whose code is the check's id."""
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
    """Return an assessment's metadata with the caveats of the checks that flagged it.

    The stage runs after the assessments and may not change their outputs, so whoever shows them adds these on reading.
    """
    mine = tuple(CaveatRecord(**asdict(caveat)) for caveat in caveats_of(rows, metadata.name))
    return metadata.model_copy(update={"caveats": (*metadata.caveats, *mine)}) if mine else metadata
