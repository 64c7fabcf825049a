"""Entries that failed at run time: their numbers are missing, so the run is not valid until they are there or removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windtunnel.core.contracts import Caveat
from windtunnel.records.artifacts import Artifacts, AssessmentResult


def with_failed_entries(summary: AssessmentResult, found: Sequence[tuple[str, Artifacts]]) -> AssessmentResult:
    """Return the summary with a hard failure and a caveat for each entry without a result; the gate refuses hard failures.

    Args:
        summary: without them.
        found: the family and the artifacts of every entry, in the order of the run.

    """
    failed = {f"{family}.{a.name}": a.metadata.failure for family, a in found if a.metadata.failure}
    if not failed:
        return summary
    lines = [
        f"{where} failed and has no result ({failure.reason}): "
        + ("run dvc repro again" if failure.is_temporary else "change the entry or remove it")
        for where, failure in failed.items()
    ]
    failures = summary.kwargs["hard_failures"]
    assert isinstance(failures, list)
    return replace(
        summary,
        metrics={**summary.metrics, "hard_failures": len(failures) + len(lines)},
        kwargs={
            **summary.kwargs,
            "hard_failures": [*failures, *lines],
            "failed": [a.name for _, a in found if a.metadata.failure],
        },
        caveats=(*(Caveat("entry_failed", line) for line in lines), *summary.caveats),
    )
