"""Stage `sweep@<name>`: one entry of `sweeps`, with its curve as a series and its histogram as text."""

from __future__ import annotations

import sys

from windtunnel.sweeps.report import print_report
from windtunnel.workspace import run_assessment, user_errors


def main(name: str) -> None:
    """Run the sweep `name` and print its page."""
    print_report(run_assessment("sweeps", name))


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
