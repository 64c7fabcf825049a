"""`windtunnel promote`: the model of the last run becomes the champion."""

from __future__ import annotations

import click

from windtunnel.boundary.params import load_params


@click.command()
@click.option("--version", "number", help="A version that is registered already, in place of the last run.")
@click.option("--force", is_flag=True, help="Against the gate's decision; the version is tagged so.")
@click.option("--allow-dirty", is_flag=True, help="Although the work tree has changes that are not committed.")
def promote(*, number: str | None, force: bool, allow_dirty: bool) -> None:
    """Register the model of the last run and make it the champion, if it passed the gate.

    The champion before it becomes `previous`. An unsound evaluation promotes nothing, forced or not.

    \b
    Examples:
      windtunnel promote
      windtunnel promote --version 7
    """  # noqa: D301
    from windtunnel.operations.retrain.flow import promote_last_run, promote_version
    from windtunnel.operations.tracking.registry import open_registry

    registry = open_registry(load_params().tracking)
    if number is not None:
        version = promote_version(registry, number, force=force)
    else:
        version = promote_last_run(registry, force=force, allow_dirty=allow_dirty)
    click.echo(f"promote: {version} is the champion")
