"""`windtunnel champion`: who is in service, and the evidence the gate compares with."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windtunnel.boundary.params import load_params


@click.command()
@click.option("--fetch", is_flag=True, help="Put the champion's outcomes into champion/, for the gate to compare with.")
@click.option("--reassess", is_flag=True, help="Reassess the champion, on today's samples under today's params.")
def champion(*, fetch: bool, reassess: bool) -> None:
    """Show the versions that have an alias in the model registry, and the newest one where it has none.

    The gate talks to no server: it compares with the outcomes in champion/, which --fetch and --reassess put there.

    \b
    Examples:
      windtunnel champion
      windtunnel champion --fetch && dvc repro && windtunnel gate
      windtunnel champion --reassess            after a change of the assessments or of the samples
    """  # noqa: D301
    from windtunnel.cli.retrain import run_stage
    from windtunnel.core.errors import UserError
    from windtunnel.operations.retrain.champion import fetch_champion
    from windtunnel.operations.retrain.champion import reassess as reassess_champion
    from windtunnel.operations.retrain.flow import REASONS, STATUS
    from windtunnel.operations.tracking.registry import CHALLENGER, CHAMPION, PREVIOUS, open_registry

    params = load_params()
    registry = open_registry(params.tracking)
    if fetch or reassess:
        fetched = fetch_champion(registry)
        if fetched is None:
            raise UserError(f"champion: {registry.model} has no champion yet; windtunnel promote makes the first")
        if reassess:
            reassess_champion(fetched, params, run_stage)
        click.echo(f"champion: the outcomes of {fetched} are in champion/")
        return
    table = Table(header_style="bold")
    for column in ("alias", "version", "gate", "last retraining", "why", "assessment run"):
        table.add_column(column, overflow="fold")
    named = {alias: registry.alias(alias) for alias in (CHAMPION, CHALLENGER, PREVIOUS)}
    newest = registry.versions()[:1]  # an unsound one has no alias
    if newest and newest[0].number not in {version.number for version in named.values() if version}:
        named["-"] = newest[0]
    for alias, version in named.items():
        if version:
            ended, why = version.tags.get(STATUS, "-").replace("_", " "), version.tags.get(REASONS, "")
            reasons = escape(why or version.tags.get("gate.reasons", ""))
            table.add_row(alias, version.number, version.decision, ended, reasons, version.run_id)
    Console().print(table if table.row_count else f"{registry.model}: no version yet")
