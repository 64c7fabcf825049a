"""`windtunnel rollback`: the champion before this one is champion again."""

from __future__ import annotations

import click

from windtunnel.boundary.params import load_params


@click.command()
def rollback() -> None:
    """Make the champion that the present one replaced champion again. A retraining does not promote the other again.

    \b
    Example:
      windtunnel rollback
    """  # noqa: D301
    from windtunnel.operations.tracking.registry import open_registry

    removed, restored = open_registry(load_params().tracking).rollback()
    click.echo(f"rollback: {restored} is the champion again; {removed} is out of service")
