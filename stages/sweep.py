"""Stage `sweep@<name>`: one entry of `sweeps`, and its page in the terminal."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main
from windtunnel.assessments.sweeps.report import print_report

if __name__ == "__main__":
    print_report(stage_main("sweeps").metadata)
