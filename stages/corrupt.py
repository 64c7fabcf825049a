"""Stage `corrupt@<name>`: one entry of `corruptions`, the suite and each corruption under it."""

from __future__ import annotations

import sys
import time
from typing import cast

from windtunnel.core.artifacts import AssessmentResult, write_artifacts
from windtunnel.corruptions.assess import assess_suite
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.load import load_params
from windtunnel.workspace import ROBUSTNESS, finish, prepare_entry, user_errors


def main(name: str) -> None:
    """Write reports/robustness/<name> and a directory per corruption and severity below it."""
    started, params = time.time(), load_params()
    entry, subject = prepare_entry(params, "corruptions", name)

    def keep(child: AssessmentResult) -> None:
        write_artifacts(child, ROBUSTNESS / name / child.name, subject, started=started)

    # The children are on disk before the suite: its sample sheet is drawn from them.
    finish(params, "corruptions", assess_suite(name, cast(CorruptionEntry, entry), subject, keep), subject, started)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
