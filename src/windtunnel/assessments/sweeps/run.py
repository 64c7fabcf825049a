"""One entry of `sweeps` as its stage runs it, with its curve as a series and its histogram as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.sweeps.assess import assess
from windtunnel.assessments.sweeps.report import print_report
from windtunnel.assessments.sweeps.series import write_curve_series

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.params.sweeps import SweepEntry
    from windtunnel.records.artifacts import Artifacts, AssessmentResult
    from windtunnel.records.layout import Layout


def run(task: Task[SweepEntry]) -> AssessmentResult:
    """Run one sweep."""
    return assess(task.name, task.entry, task.budget, task.subject)


def finish(artifacts: Artifacts, layout: Layout) -> None:
    """Write the series of its curve, and print its page."""
    write_curve_series(artifacts, layout.plots / "sweep" / f"{artifacts.name}.csv")
    print_report(artifacts.metadata)
