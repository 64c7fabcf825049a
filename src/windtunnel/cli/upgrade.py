"""`windtunnel upgrade`: an older project as this version writes it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click


@click.command()
@click.option("--yes", is_flag=True, help="Ask nothing.")
def upgrade(*, yes: bool) -> None:
    """Rewrite params.yaml, and the files that `windtunnel init` wrote, as this version has them.

    Run it in the folder of params.yaml after an update of windtunnel. It shows the diff, asks, writes, and lists the stages
    that will be assessed again. A file that you have changed stays. Comments in params.yaml stay. docs/stability.md says what may
    change between versions.

    \b
    Examples:
      windtunnel upgrade
      windtunnel upgrade --yes && dvc repro
    """  # noqa: D301
    from windtunnel.cli.init import colour
    from windtunnel.operations.project.upgrade import plan_upgrade
    from windtunnel.operations.project.write import apply

    folder = Path.cwd()
    planned = plan_upgrade(folder)
    for line in planned.changes:
        click.echo(f"params.yaml: {line}")
    for line in planned.todo:
        click.echo(f"to do: {line}", err=True)
    if planned.plan.changes():
        for line in planned.plan.diff(Path()):
            click.echo(click.style(line, fg=colour(line)))
        if not yes and not click.confirm("Do this?", default=True):
            return
        apply(planned.plan, folder)
    else:
        click.echo("upgrade: the files are up to date")
    if not planned.todo:
        _list_pending()


def _list_pending() -> None:
    """Print which stages will run again, and whether the champion's outcomes were measured under the former protocol."""
    from windtunnel.operations.resolve.status import pending_stages
    from windtunnel.records.layout import CHAMPION, LOCK

    if find_spec("dvc") is None or not LOCK.is_file():
        click.echo("upgrade: nothing has run here yet")
        return
    pending = pending_stages()
    assessed = [
        stage for stage in pending if stage.why and not stage.redraws and ("@" in stage.stage or stage.stage == "clean")
    ]
    for stage in pending:
        if stage.why:
            click.echo(f"{stage.stage}: {'drawn' if stage.redraws else 'computed'} again: {'; '.join(stage.why)}")
    if not any(stage.why for stage in pending):
        click.echo("upgrade: no result has to be computed again")
    if assessed and CHAMPION.is_file():
        click.echo(
            "the champion was assessed under the former settings; after dvc repro: windtunnel champion --reassess"
        )
