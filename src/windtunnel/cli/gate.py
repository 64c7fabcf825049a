"""`windtunnel gate`: the gate's decision as a table and as an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape

from windtunnel.cli.output import OutputPath, TableColumn, print_line, print_table, table_console
from windtunnel.core.errors import INFRASTRUCTURE, UserError
from windtunnel.evaluation.gate.table import COLUMNS, champion_line, markdown, rows, sentence
from windtunnel.records.files import write_json
from windtunnel.records.findings import read_findings
from windtunnel.records.gate import EXIT_CODE, ConditionStatus, Decision, GateResult, read_gate
from windtunnel.records.layout import GATE, HERE, REPORTS, SANITY

if TYPE_CHECKING:
    from windtunnel.records.sequential_gate import SequentialDecision

_COLOURS = {ConditionStatus.HOLDS.value: "green", ConditionStatus.NOT_APPLICABLE.value: "bright_black"}


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown, for a comment on a pull request.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
@click.option("--junit", type=OutputPath(".xml"), help="Also write a JUnit test report to FILE.")
@click.option(
    "--sarif", type=OutputPath(".sarif"), help="Also write failed conditions and flagged checks as SARIF 2.1.0."
)
@click.option("--sequential", is_flag=True, help="Assess samples in random order until the conditions are decided.")
@click.option(
    "--batch", type=click.IntRange(1), default=50, show_default=True, help="Samples at a time (--sequential)."
)
@click.option("--picture", type=OutputPath(".png"), help="Also draw the confidence sequences to FILE (--sequential).")
@click.pass_context
def gate(
    ctx: click.Context,
    *,
    as_markdown: bool,
    as_json: bool,
    junit: Path | None,
    sarif: Path | None,
    sequential: bool,
    batch: int,
    picture: Path | None,
) -> None:
    """Print the gate's decision of the last run: each condition, its value, and whether it is met.

    \b
    Exit codes:
      0   passed: every condition is met, or none is set
      10  failed: a condition is not met
      20  unsound: a hard failure, or no attack gives an estimate of the worst case that a condition is about
      30  no decision: the run is missing or damaged

    \b
    Examples:
      dvc repro && windtunnel gate && ./deploy.sh
      windtunnel gate --junit gate.xml
      windtunnel repro clean && windtunnel gate --sequential --picture sequence.png
    """  # noqa: D301
    if sequential:
        if junit or sarif:
            raise click.UsageError("--sequential prints lines, --markdown or --json; leave out --junit and --sarif")
        ctx.exit(_sequential(batch, picture, as_json=as_json, as_markdown=as_markdown))
    if picture:
        raise click.UsageError("--picture draws confidence sequences; add --sequential")
    try:
        result = read_gate(GATE)
        if junit:
            from windtunnel.reporting.ci_reports import cases_of_gate, write_junit

            write_junit("windtunnel gate", cases_of_gate(result), junit)
        if sarif:
            from windtunnel.reporting.ci_reports import write_sarif

            write_sarif(result, read_findings(SANITY), HERE, sarif)
        if as_json:
            from windtunnel.reporting.answers import gate_answer

            click.echo(gate_answer(result).text())
        elif as_markdown:
            click.echo(markdown(result), nl=False)
        else:
            show_result(result, table_console())
    except UserError as error:
        click.echo(f"windtunnel: {GATE} is missing or damaged ({error}); run dvc repro", err=True)
        ctx.exit(INFRASTRUCTURE)
    ctx.exit(result.exit_code)


def _sequential(batch: int, picture: Path | None, *, as_json: bool, as_markdown: bool) -> int:
    """Print, and draw to `picture`, each condition's confidence sequence and the decision; return its exit code."""
    from windtunnel.operations.resolve.build import resolve_all
    from windtunnel.operations.sequential import run_sequential_gate
    from windtunnel.records.sequential_gate import SequentialDecision
    from windtunnel.reporting.answers import sequential_step
    from windtunnel.reporting.sequential_gate import SEQUENCE_FILE, digests_of, save_sequence

    decision, by_rule, steps, run = Decision.FAILED, False, [], digests_of(resolve_all())
    for state, decided, by_rule in run_sequential_gate(batch):  # noqa: B007  used after the loop
        steps.append(sequential_step(state))
        decision = decided or decision
        for condition in [] if as_json or as_markdown else steps[-1]:
            low, high = condition.interval
            click.echo(
                f"n {condition.n:5d}  {condition.name}  {condition.value:.3f} [{low:.3f}, {high:.3f}]  "
                f"at least {condition.threshold:g}: {_IN_WORDS[condition.holds]}"
            )
    code, n = EXIT_CODE[decision], max(condition.n for condition in steps[-1])
    answer = SequentialDecision(decision=decision, exit_code=code, n=n, is_early=not by_rule, run=run, steps=steps)
    write_json(answer.model_dump(mode="json"), REPORTS / SEQUENCE_FILE)
    if picture:
        save_sequence(answer, picture)
    if as_json:
        click.echo(answer.model_dump_json(indent=2))
    else:
        click.echo(_sequence_table(answer, picture) if as_markdown else answer.sentence)
    return answer.exit_code


def _sequence_table(answer: SequentialDecision, picture: Path | None) -> str:
    """Return the decision, the picture and the confidence sequence of each condition after each batch, as Markdown."""
    table = ["| n | condition | value | 95 % sequence | at least | |", "| ---: | --- | ---: | ---: | ---: | --- |"]
    for condition in (condition for step in answer.steps for condition in step):
        low, high = condition.interval
        table.append(
            f"| {condition.n} | {condition.name} | {condition.value:.3f} | [{low:.3f}, {high:.3f}] | "
            f"{condition.threshold:g} | {_IN_WORDS[condition.holds]} |"
        )
    shown = [f"![confidence sequences]({picture.as_posix()})", ""] if picture else []
    return "\n".join([f"**{answer.sentence}**", "", *shown, *table])


_IN_WORDS = {True: "holds", False: "fails", None: "undecided"}


def show_result(result: GateResult, console: Console) -> None:
    """Print the decision as a table."""
    *names, last = COLUMNS[:-1]
    columns = [TableColumn(n, n == names[0], n in {"value", "threshold", "interval"}) for n in names]
    conditions = rows(result)
    colours = {holds: _COLOURS.get(holds, "red") for *_, holds, _ in conditions}
    print_table(console, [*columns, TableColumn(last, styles=colours)], [("", [row[:-1] for row in conditions])])
    # Reasons are sentences: below the table they keep its columns readable in a narrow terminal.
    for name, *_, holds, why in conditions:
        if why:
            print_line(console, f"[{colours[holds]}]{holds}[/] {escape(name)}: {escape(why)}")
    for line in result.hard_failures:
        print_line(console, f"[bold red]NOT VALID[/bold red] {escape(line)}")
    if line := champion_line(result):
        print_line(console, escape(line))
    print_line(console, f"[bold]gate: {escape(sentence(result))}[/bold]")
