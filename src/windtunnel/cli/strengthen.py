"""`windtunnel strengthen`: stronger attacks for flagged sanity checks, as entries of params.yaml, run on the survivors."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markup import escape

from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.records.layout import PARAMS_FILE, SANITY


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the lines; write and run nothing.")
@click.option("--only", metavar="ID", multiple=True, help="Answer these checks alone.")
def strengthen(*, dry_run: bool, only: tuple[str, ...]) -> None:
    """Add a stronger attack for each flagged sanity check to params.yaml, and run it on the samples that survived the others.

    More steps and restarts, another loss, a black box, BPDA through a student of the model, transfer from it, EOT.

    \b
    Examples:
      windtunnel strengthen --dry-run
      windtunnel strengthen --only D15
    """  # noqa: D301
    from windtunnel.evaluation.sanity.remedies import stronger
    from windtunnel.operations.strengthen import add_to, lines_of, run_entries
    from windtunnel.records.findings import read_sanity

    recorded, params, console = read_sanity(SANITY), load_params(), Console()
    if recorded is None:
        raise UserError(f"{SANITY}: no sanity checks ran yet. Run dvc repro first")
    check_ids = {name.upper() for name in only}
    checks = [row for row in recorded.checks if not check_ids or row.id in check_ids]
    entries = stronger(checks, params.attacks, params.budget)
    if not entries:
        console.print(
            "strengthen: nothing to add: params.yaml already has every attack that would settle a flagged check"
        )
        return
    console.print(escape(lines_of(entries)), end="")
    if dry_run:
        return
    add_to(PARAMS_FILE, entries)
    failed = []
    for name, done in zip(entries, run_entries(entries), strict=True):
        if isinstance(done, UserError):
            failed.append(name)
            console.print(f"[red]{escape(str(done))}[/red]", soft_wrap=True)
        else:
            console.print(f"{name}: broke {done.broken} of {done.left} surviving samples")
    console.print(
        f"{PARAMS_FILE}: {len(entries)} entries added; dvc repro takes them into the worst case and the report"
    )
    if failed:
        raise UserError(
            f"{PARAMS_FILE}: attacks.{', attacks.'.join(failed)} failed; correct or remove them before dvc repro"
        )
