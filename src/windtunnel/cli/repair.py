"""`windtunnel repair`: restore DVC's files that a killed process damaged."""

from __future__ import annotations

import click

from windtunnel.operations.dvc_files import drop_stale_stages
from windtunnel.operations.dvc_files import repair as repair_files


@click.command()
def repair() -> None:
    """Repair DVC's files that a kill left empty or cut; `make repro` does it first. Nothing that was computed is lost.

    Stages that dvc.yaml no longer has are dropped from dvc.lock, where DVC would keep them.

    \b
    Example:
      windtunnel repair && dvc repro
    """  # noqa: D301
    damages = repair_files()
    for damage in damages:
        click.echo(f"repair: {damage.path} {damage.what}: repaired as by {damage.command}")
    stale = drop_stale_stages()
    if stale:
        click.echo(f"repair: dvc.lock: stages that dvc.yaml no longer has are dropped: {', '.join(stale)}")
    if not damages and not stale:
        click.echo("repair: nothing is damaged")
