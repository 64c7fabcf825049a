"""`windtunnel status`: what will run and why, before it does."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from windtunnel.operations.dvc_files import require_whole_files
from windtunnel.operations.resolve.status import Pending, pending_stages


@click.command()
@click.option("--json", "as_json", is_flag=True, help="A list of stages with their reasons, for scripts.")
def status(*, as_json: bool) -> None:
    """Which stages `dvc repro` would run, why, and how long they took the last time. Nothing is run or written.

    \b
    Examples:
      windtunnel status
      windtunnel status --json
    """  # noqa: D301
    require_whole_files()
    pending = pending_stages()
    if as_json:
        click.echo(json.dumps([asdict(stage) for stage in pending], indent=2))
        return
    if not pending:
        click.echo("Nothing to run: every result matches the present params, files, versions and code.")
        return
    table = Table.grid(padding=(0, 2))
    for stage in (stage for stage in pending if stage.why):
        table.add_row(f"[bold]{stage.stage}[/bold]", "; ".join(stage.why), _time(stage))
    Console().print(table)
    if later := [stage.stage for stage in pending if not stage.why]:
        click.echo(f"and, where the results before them change: {', '.join(later)}")
    click.echo(_estimate(pending))


def _time(stage: Pending) -> str:
    if stage.redraws:
        return "redrawn only"
    return "" if stage.seconds is None else f"{stage.seconds:.3g} s"


def _estimate(pending: list[Pending]) -> str:
    count = f"{len(pending)} stage{'s' if len(pending) > 1 else ''}"
    computed = [stage for stage in pending if not stage.redraws]
    seconds = [stage.seconds for stage in computed if stage.seconds is not None]
    unknown = len(computed) - len(seconds)
    if unknown and not seconds:
        return f"{count}; the time they take is not known on this machine yet."
    rest = f", and {unknown} stage{'s' if unknown > 1 else ''} without a time yet" if unknown else ""
    return f"{count}; about {sum(seconds):.0f} s by their last runs{rest}."
