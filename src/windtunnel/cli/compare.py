"""`windtunnel compare`: two runs, paired on the same samples."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def compare(*, first: Path, second: Path) -> None:
    """Compare two directories of results, as a Markdown table: rates, flips either way, McNemar's exact p-value.

    \b
    Example:
      windtunnel compare ../before/reports reports
    """  # noqa: D301
    from windtunnel.compare.paired import compare_runs

    rows = compare_runs(first, second)
    click.echo("| assessment | n | first | second | gained | lost | p (McNemar) | settings |")
    click.echo("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        click.echo(
            f"| {row.name} | {row.n} | {row.first:.1%} | {row.second:.1%} | {len(row.gained)} | {len(row.lost)} "
            f"| {row.p_value:.3g} | {'same' if row.same_protocol else 'differ'} |"
        )
    for row in rows:
        for word, samples in (("gained", row.gained), ("lost", row.lost)):
            if samples:
                click.echo(f"\n{row.name} {word}: {', '.join(samples)}")
