"""Stage `sweep@<name>`: one entry of `sweeps`, with its curve as a series and its histogram as text."""

from __future__ import annotations

import sys

from windtunnel.assessments.run import run_assessment
from windtunnel.assessments.sweeps.report import print_report
from windtunnel.assessments.sweeps.series import write_curve_series
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import PLOTS


def main(name: str) -> None:
    """Run the sweep `name`, write the series of its curve and print its page."""
    sweep = run_assessment("sweeps", name)
    write_curve_series(sweep, PLOTS / "sweep" / f"{name}.csv")
    print_report(sweep.metadata)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
