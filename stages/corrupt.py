"""Stage `corrupt@<name>`: one entry of `corruptions`, the suite and each corruption under it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, cast

from windtunnel.assessments.run import finish, prepare_entry
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import PLOTS, ROBUSTNESS

if TYPE_CHECKING:
    from windtunnel.core.artifacts import AssessmentResult
    from windtunnel.params.corruptions import CorruptionEntry


def main(name: str) -> None:
    """Write reports/robustness/<name>, a directory per corruption and severity below it, and the series of its curves."""
    # Imported here: the processes that corrupt import this module anew, and need no torch.
    from windtunnel.assessments.corruptions.assess import assess_suite
    from windtunnel.assessments.corruptions.series import write_severity_series
    from windtunnel.core.artifacts import write_artifacts
    from windtunnel.params.load import load_params

    started, params = time.time(), load_params()
    entry, subject = prepare_entry(params, "corruptions", name)

    def keep(child: AssessmentResult) -> None:
        write_artifacts(child, ROBUSTNESS / name / child.name, subject, started=started)

    # The children are on disk before the suite: its sample sheet is drawn from them.
    result = assess_suite(name, cast("CorruptionEntry", entry), subject, keep)
    write_severity_series(finish(params, "corruptions", result, subject, started), PLOTS / "corrupt" / f"{name}.csv")


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
