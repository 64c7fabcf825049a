"""`windtunnel compare`: two runs or more, paired on the same samples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from windtunnel.cli.output import OutputFile

if TYPE_CHECKING:
    from windtunnel.reporting.compare.comparison import Comparison
    from windtunnel.reporting.report.model import Section

_WIDTH = 120  # where there is no terminal that has one


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for the comment of a pull request.")
@click.option("--html", type=OutputFile(".html", ".htm"), help="Also write HTML with pictures to FILE.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def compare(*, runs: tuple[str, ...], as_markdown: bool, html: Path | None, as_json: bool) -> None:
    """Compare runs with the first: params and metrics that differ, paired statistics, and which samples flipped.

    A run is a directory of results, `workspace`, a git revision, a DVC experiment, or an MLflow run (its id or name).
    The artifacts of revisions and runs come from DVC's cache, or its remote. With one run, the workspace is compared
    with it. Assessments on different samples are not paired, and the output says so.

    \b
    Examples:
      windtunnel compare HEAD                      what did my changes do?
      windtunnel compare main my-experiment
      windtunnel compare main HEAD --markdown      for a pull request
      windtunnel compare old/reports reports --html comparison.html
    """  # noqa: D301
    from windtunnel.cli.resolve import resolve
    from windtunnel.reporting.compare.comparison import compare_runs

    names = runs if len(runs) > 1 else (*runs, "workspace")
    with tempfile.TemporaryDirectory() as scratch:
        runs_found = [resolve(name, Path(scratch) / str(i)) for i, name in enumerate(names)]
        comparison = compare_runs(runs_found)
        if as_json:
            from windtunnel.reporting.answers import compare_answer

            click.echo(compare_answer(comparison).text())
        else:
            show_comparison(comparison, as_markdown=as_markdown, html=html)


def show_comparison(comparison: Comparison, *, as_markdown: bool, html: Path | None) -> None:
    """Print a comparison, and write it as HTML where `html` is given."""
    from windtunnel.reporting.compare.page import document, markdown, render_comparison, title

    heading, sections = title(comparison), document(comparison)
    if as_markdown:
        click.echo(markdown(heading, sections), nl=False)
    else:
        _print(heading, sections)
    if html is not None:
        render_comparison(comparison, html)
        click.echo(f"with pictures: {html}", err=as_markdown)


def _print(heading: str, sections: list[Section]) -> None:
    from windtunnel.reporting.report.model import Table, Text

    console = Console() if Console().is_terminal else Console(width=_WIDTH)
    console.print(f"[bold]{escape(heading)}[/bold]")
    for section in sections:
        console.print(f"\n[bold]{escape(section.title)}[/bold]")
        for block in section.blocks:
            if isinstance(block, Table):
                table = Grid(title=escape(block.caption) or None, title_justify="left", header_style="bold", box=SIMPLE)
                for i, cell in enumerate(block.header):
                    table.add_column(escape(cell), justify="left" if i == 0 else "right", overflow="fold")
                for row in block.rows:
                    table.add_row(*map(escape, row))
                console.print(table)
            elif isinstance(block, Text):
                console.print(escape(block.text), style="dim")
