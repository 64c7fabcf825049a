"""`windtunnel sweep`: the same assessment at several budgets, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windtunnel.cli.output import OutputFile
from windtunnel.core.errors import UserError

if TYPE_CHECKING:
    from windtunnel.operations.experiments import Experiment
    from windtunnel.reporting.compare.runs import Run


@click.command()
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Values of a key of `budget`, or names of `budgets`.",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=V1,V2,...", help="Values of any other key of params.yaml.")
@click.option("--name", default="sweep", show_default=True, help="What the names of the experiments begin with.")
@click.option("--jobs", type=click.IntRange(1), help="How many run at once; by default as many as processors.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the comparison as Markdown.")
@click.option("--html", type=OutputFile(".html", ".htm"), help="Also write it as HTML with pictures.")
def sweep(
    *,
    budgets: tuple[str, ...],
    sets: tuple[str, ...],
    name: str,
    jobs: int | None,
    as_markdown: bool,
    html: Path | None,
) -> None:
    """Run params.yaml at every combination of values as DVC experiments, and compare them with the first.

    Every combination is checked before the first one runs; what DVC has cached is not computed again. The experiments
    see files that git or DVC tracks, and write to this project's MLflow store.

    \b
    Examples:
      windtunnel sweep --budget epsilon=2/255,4/255,8/255
      windtunnel sweep --budget tight,wide --jobs 2
      windtunnel sweep --set model.train.recipe=standard,adversarial --html recipes.html
    """  # noqa: D301
    from windtunnel.cli.compare import show_comparison
    from windtunnel.core.machine import usable_processors
    from windtunnel.operations.dvc_files import require_whole_files
    from windtunnel.operations.experiments import grid, run_experiments
    from windtunnel.operations.revisions import run_at
    from windtunnel.reporting.compare.comparison import compare_runs

    axes = dict([_axis(text, "budget") for text in budgets] + [_axis(text, "") for text in sets])
    if not axes:
        raise UserError("sweep: nothing to vary; for example --budget epsilon=2/255,4/255")
    require_whole_files()
    experiments = grid(name, axes)
    failed = run_experiments(experiments, jobs or min(len(experiments), usable_processors()))
    names = [e.name for e in experiments if e.name not in failed]
    with tempfile.TemporaryDirectory() as scratch:
        runs = [run for i, done in enumerate(names) if (run := run_at(done, Path(scratch) / str(i)))]
        _record(name, axes, experiments, runs)
        if len(runs) > 1:
            show_comparison(compare_runs(runs), as_markdown=as_markdown, html=html)
        elif runs:
            click.echo(f"one experiment, {names[0]}: see windtunnel compare HEAD {names[0]}", err=True)
    if failed:
        raise UserError(f"sweep: {', '.join(failed)} failed; see dvc queue logs {failed[0]}")


def _record(name: str, axes: Mapping[str, list[str]], experiments: Sequence[Experiment], runs: Sequence[Run]) -> None:
    """Keep the sweep in MLflow, with links to the runs of its experiments. A store that is down costs a line: results are in DVC."""
    from windtunnel.boundary.mlflow_server import tracking_uri
    from windtunnel.boundary.params import load_params
    from windtunnel.operations.tracking.state import state_digest
    from windtunnel.operations.tracking.sweep import Point, record_sweep
    from windtunnel.records.layout import Layout
    from windtunnel.runtime.credentials import reason_of, without_credentials

    values = {experiment.name: dict(experiment.overrides) for experiment in experiments}
    points = []
    for run in runs:
        assert run.reports is not None  # of run_at
        root = run.reports.parent
        metrics = {**run.metrics, "epsilon": load_params(root / "params.yaml").budget.epsilon}
        points.append(Point(values[run.label], state_digest(Layout(root)), metrics))
    if len(points) < 2:
        return
    tracking = load_params().tracking
    uri = tracking_uri(tracking.uri)
    try:
        record_sweep(name, axes, points, uri, tracking.experiment)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like
        click.echo(f"tracking: the sweep is not recorded: {without_credentials(uri)}: {reason_of(error)}", err=True)


def _axis(text: str, block: str) -> tuple[str, list[str]]:
    """(`budget.epsilon`, its values); a bare list after --budget names whole budgets."""
    key, separator, values = text.partition("=")
    if not separator:
        if not block:
            raise UserError(f"sweep: --set {text}: KEY=V1,V2 is needed")
        key, values = block, text
    elif block:
        key = f"{block}.{key}"
    choices = [value.strip() for value in values.split(",")]
    if not all(choices):
        raise UserError(f"sweep: {text}: a value is empty")
    return key.strip(), choices
