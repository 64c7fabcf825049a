"""`windtunnel track`: log the last run to MLflow."""

from __future__ import annotations

import click

from windtunnel.operations.tracking.track import Delivery
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
    report_outcome(track_state(strict=strict))


def report_outcome(outcome: Delivery) -> None:
    """Say in a line or two what became of a call."""
    if outcome.already:
        click.echo("track: this state is logged already")
    elif outcome.run:
        click.echo(f"track: run {outcome.run}")
    else:
        click.echo(f"track: WARNING: not logged, kept in the outbox for the next track: {outcome.reason}", err=True)
    if outcome.delivered_from_outbox:
        click.echo(f"track: {outcome.delivered_from_outbox} states delivered from the outbox")
    for problem in outcome.problems:
        click.echo(f"track: WARNING: {problem}", err=True)
