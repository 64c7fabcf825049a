"""`windtunnel repair`: what a kill has damaged of DVC's files is brought back."""

from __future__ import annotations

import click

from windtunnel.operations.dvc_files import repair as repair_files


@click.command()
def repair() -> None:
    """Repair DVC's files that a kill left empty or cut; `make repro` does it first. Nothing that was computed is lost.

    \b
    Example:
      windtunnel repair && dvc repro
    """  # noqa: D301
    found = repair_files()
    for damage in found:
        click.echo(f"repair: {damage.path} {damage.what}: repaired as by {damage.command}")
    if not found:
        click.echo("repair: nothing is damaged")
