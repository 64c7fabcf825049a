"""`windtunnel report`: build the PDF and the HTML from whatever artifacts there are."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from windtunnel.report.build import build_report
from windtunnel.report.html import render_html
from windtunnel.report.pdf import render_pdf
from windtunnel.workspace import REPORTS


@click.command()
@click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    default=REPORTS,
    show_default=True,
    help="Where the artifacts are.",
)
@click.option("--only", multiple=True, help="Only these assessments, for example --only pgd or --only attacks.pgd.")
@click.option("--title", default="Robustness assessment", show_default=True)
@click.option("--open", "open_it", is_flag=True, help="Open the HTML in a browser.")
def report(*, reports: Path, only: tuple[str, ...], title: str, open_it: bool) -> None:
    """Build report.pdf and report.html. Needs no DVC: any directories in the form of the artifact contract will do.

    \b
    Examples:
      windtunnel report --open
      windtunnel report --only attacks.pgd --only cascade
      windtunnel report --reports ../other-run/reports
    """  # noqa: D301
    names = [name.rsplit(".", 1)[-1] for name in only] or None
    built = build_report(reports, title, names)
    render_pdf(built, reports / "report.pdf")
    render_html(built, reports / "report.html")
    click.echo(f"{reports / 'report.pdf'}\n{reports / 'report.html'}")
    if open_it:
        webbrowser.open((reports / "report.html").resolve().as_uri())
