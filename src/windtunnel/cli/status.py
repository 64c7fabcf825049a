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
        click.echo(json.dumps([asdict(one) for one in pending], indent=2))
        return
    if not pending:
        click.echo("Nothing to run: every result matches the present params, files, versions and code.")
        return
    table = Table.grid(padding=(0, 2))
    for one in (one for one in pending if one.why):
        table.add_row(f"[bold]{one.stage}[/bold]", "; ".join(one.why), _time(one))
    Console().print(table)
    if later := [one.stage for one in pending if not one.why]:
        click.echo(f"and, where the results before them change: {', '.join(later)}")
    click.echo(_estimate(pending))


def _time(one: Pending) -> str:
    if one.redraws:
        return "redrawn only"
    return "" if one.seconds is None else f"{one.seconds:.3g} s"


def _estimate(pending: list[Pending]) -> str:
    count = f"{len(pending)} stage{'s' if len(pending) > 1 else ''}"
    computed = [one for one in pending if not one.redraws]
    known = [one.seconds for one in computed if one.seconds is not None]
    unknown = len(computed) - len(known)
    if unknown and not known:
        return f"{count}; the time they take is not known on this machine yet."
    rest = f", and {unknown} stage{'s' if unknown > 1 else ''} without a time yet" if unknown else ""
    return f"{count}; about {sum(known):.0f} s by their last runs{rest}."
