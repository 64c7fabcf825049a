"""Stage `sweep@<name>`: one entry of `sweeps`, with its curve as a series and its histogram as text."""

from __future__ import annotations

from windtunnel.assessments.run import Task, run_entry, stage_main
from windtunnel.assessments.sweeps.assess import assess
from windtunnel.assessments.sweeps.preflight import preflight
from windtunnel.assessments.sweeps.report import print_report
from windtunnel.assessments.sweeps.series import write_curve_series
from windtunnel.core.artifacts import AssessmentResult
from windtunnel.core.layout import PLOTS
from windtunnel.params.sweeps import SweepEntry


def sweep(task: Task[SweepEntry]) -> AssessmentResult:
    """Run one sweep."""
    return assess(task.name, task.entry, task.budget, task.subject)


def main(name: str) -> None:
    """Write reports/robustness/<name> and the series of its curve, and print its page."""
    done = run_entry("sweeps", "sweep", name, SweepEntry, preflight, sweep)
    write_curve_series(done, PLOTS / "sweep" / f"{name}.csv")
    print_report(done.plain)


if __name__ == "__main__":
    stage_main(main)
