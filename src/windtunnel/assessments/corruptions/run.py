"""One entry of `corruptions` as its stage runs it: the suite, each corruption under it, and the series of its curves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.corruptions.series import write_severity_series
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.storage import keep_images

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.params.corruptions import CorruptionEntry
    from windtunnel.records.artifacts import Artifacts, AssessmentResult
    from windtunnel.records.layout import Layout


def run(task: Task[CorruptionEntry]) -> AssessmentResult:
    """Run one suite. The children are on disk before it: its sample sheet is drawn from them."""
    started = time.time()

    def keep(child: AssessmentResult) -> None:
        child = keep_images(child, task.entry.kept_inputs)
        write_artifacts(child, task.layout.robustness / task.name / child.name, task.subject, started=started)

    return assess_suite(task.name, task.entry, task.subject, keep)


def finish(artifacts: Artifacts, layout: Layout) -> None:
    """Write the series of its curves."""
    write_severity_series(artifacts, layout.plots / "corrupt" / f"{artifacts.name}.csv")
