"""`windtunnel track`: log the last run to MLflow."""

from __future__ import annotations

import click

from windtunnel.operations.stages.track import report_delivery
from windtunnel.operations.tracking.track import track as track_state


@click.command()
@click.option(
    "--strict", is_flag=True, help="Fail (exit 2) where the server cannot be reached, instead of filling the outbox."
)
def track(*, strict: bool) -> None:
    """Log the artifacts of the last run to MLflow, unless they are logged already; deliver what waits in the outbox.

    \b
    Examples:
      windtunnel track
      MLFLOW_TRACKING_URI=http://tracking:5000 windtunnel track --strict
    """  # noqa: D301
    report_delivery(track_state(strict=strict))
