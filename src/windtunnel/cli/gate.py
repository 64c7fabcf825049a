"""`windtunnel gate`: the gate's verdict as a table and as an exit code."""

from __future__ import annotations

from typing import cast

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json
from windtunnel.gate.decide import INFRASTRUCTURE
from windtunnel.workspace import GATE


@click.command()
@click.pass_context
def gate(ctx: click.Context) -> None:
    """Print the gate's verdict of the last run.

    \b
    Exit codes:
      0   promoted: every condition holds
      10  not promoted
      20  the evaluation is not sound: a hard failure
      30  no verdict: the run is missing or damaged

    \b
    Example:
      dvc repro && windtunnel gate && ./deploy.sh
    """  # noqa: D301
    console = Console()
    try:
        verdict = cast(dict[str, Json], read_json(GATE))
        code = int(str(verdict["exit_code"]))
    except (UserError, KeyError) as error:
        click.echo(f"windtunnel: {error}; run dvc repro", err=True)
        ctx.exit(INFRASTRUCTURE)
    table = Table(header_style="bold")
    for column in ("condition", "value", "at least", "95 % interval", ""):
        table.add_column(column, justify="left" if column == "condition" else "right")
    for row in cast(list[dict[str, Json]], verdict["conditions"]):
        interval = cast(list[float] | None, row["interval"])
        shown = f"[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        most = row["name"] == "hard failures"
        table.add_row(
            escape(str(row["name"])), f"{float(str(row['value'])):.4g}",
            f"{'at most ' if most else ''}{float(str(row['threshold'])):.4g}", escape(shown),
            "[green]holds[/green]" if row["holds"] else "[red]fails[/red]",
        )  # fmt: skip
    console.print(table)
    for line in cast(list[Json], verdict["hard_failures"]):
        console.print(f"[bold red]NOT VALID[/bold red] {escape(str(line))}")
    console.print(f"decision: [bold]{verdict['decision']}[/bold]")
    ctx.exit(code)
