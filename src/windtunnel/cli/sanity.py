"""`windtunnel sanity` and `windtunnel strengthen`: should the numbers of the last run be believed, and what would settle it?"""

from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from windtunnel.boundary.params import load_params
from windtunnel.cli.output import OutputPath, TableColumn, print_line, print_table, table_console
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.evaluation.sanity.check import GROUPS, PLUGINS, Check
from windtunnel.evaluation.sanity.remedies import REMEDIES, stronger
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.findings import FindingRecord, Severity, Status, counts, in_words, overall, read_sanity
from windtunnel.records.layout import PARAMS_FILE, SANITY

_COLOUR = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.NOT_RUN: "cyan",
    Status.NOT_APPLICABLE: "dim",
}


@click.command()
@click.option("--explain", metavar="ID", help="What one check looks at, why, and its source.")
@click.option("--group", type=click.Choice(list(GROUPS)), help="Only the checks of one group.")
@click.option("--flagged", is_flag=True, help="Only failures and warnings.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
@click.option("--junit", type=OutputPath(".xml"), help="Also write the HARD checks as a JUnit report.")
def sanity(*, explain: str | None, group: str | None, flagged: bool, as_json: bool, junit: Path | None) -> None:
    """Show the sanity checks of the last run: every check, its value against its threshold, and what to do.

    Three checks are about the present and run now: F3 (the champion), G5 (MLflow) and G6 (git).

    \b
    Examples:
      windtunnel sanity
      windtunnel sanity --flagged
      windtunnel sanity --explain C3
    """  # noqa: D301
    console = table_console()
    if explain:
        _explain(explain, console)
        return
    last_run = read_sanity(SANITY)
    if last_run is None:
        raise UserError(f"{SANITY}: no sanity checks ran yet. Run dvc repro first")

    from windtunnel.operations.live_checks import ASKED_NOW
    from windtunnel.reporting.answers import sanity_answer
    from windtunnel.reporting.ci_reports import cases_of_checks, write_junit

    recorded = last_run.checks
    rows = [ASKED_NOW[row.id]().instead_of(row) if row.id in ASKED_NOW else row for row in recorded]
    now = [row for row, old in zip(rows, recorded, strict=True) if row is not old]
    if junit:
        write_junit("windtunnel sanity", cases_of_checks(recorded), junit)
    if as_json:
        click.echo(sanity_answer(recorded, now).text())
        return
    _print_rows((r for r in rows if (group is None or r.group == group) and (not flagged or r.flagged)), console)
    # The counts are those of the run's record, as in `show`, the report and MLflow; checks that run now are listed separately.
    number = counts(recorded)
    print_line(console, f"[{_COLOUR[Status(overall(number))]}]{overall(number)}[/]: {in_words(number)}")
    checked_now = [f"{row.id} {row.status.replace('_', ' ')}" for row in now]
    print_line(console, f"checked now, and not counted: {', '.join(checked_now)}")
    print_line(console, escape(last_run.meaning))


def _print_rows(rows: Iterable[FindingRecord], console: Console) -> None:
    groups: dict[str, list[tuple[str, ...]]] = {}
    styles = {}
    for row in rows:
        text = ". ".join(filter(None, (row.reason, row.remedy if row.flagged else "")))
        result = row.status.replace("_", " ") + (f" ({row.severity})" if row.flagged else "")
        styles[result] = _COLOUR[row.status]
        cells = (row.id, row.title, result, _number(row.value), _number(row.threshold), text)
        groups.setdefault(GROUPS.get(row.group, PLUGINS), []).append(cells)
    names = ("id", "check", "result", "value", "limit", "observation, and what to do")
    columns = [TableColumn(n, n == "id", n in {"value", "limit"}, styles if n == "result" else {}) for n in names]
    print_table(console, columns, list(groups.items()), "Sanity checks: are these numbers valid?")


def _number(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def _explain(name: str, console: Console) -> None:
    from windtunnel.evaluation.sanity.run import registry

    rows = registry()
    row = rows.get(name.upper())
    if row is None:
        raise UserError(unknown_word("--explain", name, rows, what="a sanity check"))
    console.print(Panel(escape(_words(row)), title=f"{row.id} {row.title}", title_align="left"))


def _words(row: Check) -> str:
    limit = "none"
    if row.threshold is not None:
        limit = f"{row.threshold:g}   (sanity.thresholds: {{{row.id}: ...}} sets another)"
    return (
        f"{row.reasoning}\n\nWhen it flags: {row.severity.value}. What to do: {row.remedy}\n"
        f"Group {row.group}: {GROUPS.get(row.group, PLUGINS)}. Cost: {row.tier.value}. Threshold: {limit}\nSource: {row.source}"
        f"{_what_to_run(row)}"
    )


def _what_to_run(row: Check) -> str:
    """Return the lines of params.yaml that would settle the check, for this project's attacks, else for PGD; empty if none would."""
    from windtunnel.operations.strengthen import lines_of

    attacks, budget = {"pgd": AttackEntry(library="torchattacks", algorithm="PGD")}, Budget(epsilon=8 / 255)
    head = "softmax"
    if PARAMS_FILE.is_file():
        params = load_params()
        attacks, budget, head = params.attacks or attacks, params.budget, params.model.head.kind
    flagged = FindingRecord(id=row.id, title=row.title, severity=Severity.WARN, status=Status.WARN)
    entries = stronger([flagged], attacks, budget, head)
    if entries:
        return f"\n\nWhat to run (windtunnel strengthen does it for what was flagged):\n{lines_of(entries)}"
    if row.id in REMEDIES:
        return (
            f"\n\nNothing to add: the attacks that would settle it are in {PARAMS_FILE} already, or no attack there has an "
            f"epsilon under Linf or L2."
        )
    return ""


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
    from windtunnel.operations.strengthen import add_to, lines_of, run_entries

    recorded, params, console = read_sanity(SANITY), load_params(), table_console()
    if recorded is None:
        raise UserError(f"{SANITY}: no sanity checks ran yet. Run dvc repro first")
    check_ids = {name.upper() for name in only}
    if unknown := sorted(check_ids - {row.id for row in recorded.checks}):
        raise UserError(unknown_word("--only", unknown[0], [row.id for row in recorded.checks], what="a sanity check"))
    checks = [row for row in recorded.checks if not check_ids or row.id in check_ids]
    entries = stronger(checks, params.attacks, params.budget, params.model.head.kind)
    if not entries:
        click.echo("strengthen: nothing to add: params.yaml already has every attack that would settle a flagged check")
        return
    click.echo(lines_of(entries), nl=False)
    if dry_run:
        return
    add_to(PARAMS_FILE, entries)
    failed = []
    for name, done in zip(entries, run_entries(entries), strict=True):
        if isinstance(done, UserError):
            failed.append(name)
            print_line(console, f"[red]{escape(str(done))}[/red]")
        else:
            click.echo(f"{name}: broke {done.broken} of {done.left} surviving samples")
    click.echo(f"{PARAMS_FILE}: {len(entries)} entries added; dvc repro takes them into the worst case and the report")
    if failed:
        raise UserError(
            f"{PARAMS_FILE}: attacks.{', attacks.'.join(failed)} failed; correct or remove them before dvc repro"
        )
