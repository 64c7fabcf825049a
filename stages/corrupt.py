"""Stage `corrupt@<name>`: one entry of `corruptions`, the suite and each corruption under it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from windtunnel.core.endings import user_errors
from windtunnel.core.layout import PLOTS, ROBUSTNESS

if TYPE_CHECKING:
    from windtunnel.assessments.run import Task
    from windtunnel.core.artifacts import AssessmentResult
    from windtunnel.params.corruptions import CorruptionEntry


def corrupt(task: Task[CorruptionEntry]) -> AssessmentResult:
    """Run one suite. The children are on disk before it: its sample sheet is drawn from them."""
    from windtunnel.assessments.corruptions.assess import assess_suite
    from windtunnel.core.artifacts import write_artifacts

    started = time.time()

    def keep(child: AssessmentResult) -> None:
        write_artifacts(child, ROBUSTNESS / task.name / child.name, task.subject, started=started)

    return assess_suite(task.name, task.entry, task.subject, keep)


def main(name: str) -> None:
    """Write reports/robustness/<name>, a directory per corruption and severity below it, and the series of its curves."""
    # Imported here: the processes that corrupt import this module too, and need no torch.
    from windtunnel.assessments.corruptions.preflight import preflight
    from windtunnel.assessments.corruptions.series import write_severity_series
    from windtunnel.assessments.run import run_entry
    from windtunnel.params.corruptions import CorruptionEntry

    suite = run_entry("corruptions", "corrupt", name, CorruptionEntry, preflight, corrupt)
    write_severity_series(suite, PLOTS / "corrupt" / f"{name}.csv")


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
