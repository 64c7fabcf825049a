"""Stage `track`: log new results to MLflow. Cheap, always runs, idempotent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from windtunnel.operations.tracking.recall import logged_before
from windtunnel.records.files import hidden_from_dvc
from windtunnel.records.layout import ROBUSTNESS

if TYPE_CHECKING:
    from windtunnel.operations.tracking.track import Delivery


def main() -> None:
    """Log the state of reports/, unless it is logged already."""
    if names := hidden_from_dvc(ROBUSTNESS):
        _warn(f"{', '.join(names)}: not whole, kept out of DVC's cache and of dvc push; dvc repro runs it again")
    if logged_before():
        print("track: this state is logged already")
        return
    # Slow to import, which nobody should wait for where there is nothing to log.
    from windtunnel.operations.tracking.track import track

    report_delivery(track())


def report_delivery(delivery: Delivery) -> None:
    """Describe the outcome of `track` in a line or two."""
    if delivery.already:
        print("track: this state is logged already")
    elif delivery.run:
        print(f"track: run {delivery.run}")
    else:
        _warn(f"not logged, kept in the outbox for the next track: {delivery.reason}")
    if delivery.delivered_from_outbox:
        print(f"track: {delivery.delivered_from_outbox} states delivered from the outbox")
    for problem in delivery.problems:
        _warn(problem)


def _warn(text: str) -> None:
    print(f"track: WARNING: {text}", file=sys.stderr)
