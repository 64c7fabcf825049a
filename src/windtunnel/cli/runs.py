"""Commands that read other runs than the last: `compare`, `view` and `sweep`."""

from __future__ import annotations

import signal
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from windtunnel.boundary.mlflow_server import tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.cli.output import OutputPath, TableColumn, print_line, print_table, table_console
from windtunnel.core.errors import UserError, nearest, shown
from windtunnel.core.machine import usable_processors
from windtunnel.operations.dvc_files import require_whole_files
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.layout import Layout
from windtunnel.reporting.view.serve import ViewServer
from windtunnel.runtime.credentials import reason_of, without_credentials

if TYPE_CHECKING:
    from windtunnel.operations.experiments import Experiment
    from windtunnel.reporting.compare.comparison import Comparison
    from windtunnel.reporting.compare.runs import Run
    from windtunnel.reporting.report.model import Section


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for the comment of a pull request.")
@click.option("--html", type=OutputPath(".html", ".htm"), help="Also write HTML with pictures to FILE.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def compare(*, runs: tuple[str, ...], as_markdown: bool, html: Path | None, as_json: bool) -> None:
    """Compare runs with the first: params and metrics that differ, paired statistics, and which samples flipped.

    A run is a directory of results, `workspace`, a git revision, a DVC experiment, or an MLflow run (its id or name).
    The artifacts of revisions and runs come from DVC's cache, or its remote. With one run, the workspace is compared
    with it. Assessments on different samples are not paired, and the output says so.

    \b
    Examples:
      windtunnel compare HEAD                      what did my changes do?
      windtunnel compare main my-experiment
      windtunnel compare main HEAD --markdown      for a pull request
      windtunnel compare old/reports reports --html comparison.html
    """  # noqa: D301
    from windtunnel.reporting.answers import compare_answer
    from windtunnel.reporting.compare.comparison import compare_runs

    names = runs if len(runs) > 1 else (*runs, "workspace")
    with tempfile.TemporaryDirectory() as scratch:
        runs_found = [resolve(name, Path(scratch) / str(i)) for i, name in enumerate(names)]
        comparison = compare_runs(runs_found)
        if as_json:
            click.echo(compare_answer(comparison).text())
        else:
            show_comparison(comparison, as_markdown=as_markdown, html=html)


def show_comparison(comparison: Comparison, *, as_markdown: bool, html: Path | None) -> None:
    """Print a comparison, and write it as HTML where `html` is given."""
    from windtunnel.reporting.compare.page import document, markdown, render_comparison, title

    heading, sections = title(comparison), document(comparison)
    if as_markdown:
        click.echo(markdown(heading, sections), nl=False)
    else:
        _print(heading, sections)
    if html is not None:
        render_comparison(comparison, html)
        click.echo(f"as HTML: {html}", err=as_markdown)


def _print(heading: str, sections: list[Section]) -> None:
    from windtunnel.reporting.report.model import Table, Text

    console = table_console()
    print_line(console, f"[bold]{escape(heading)}[/bold]")
    for section in sections:
        print_line(console, f"\n[bold]{escape(section.title)}[/bold]")
        for block in section.blocks:
            if isinstance(block, Table):
                columns = [TableColumn(name, typed=i == 0, right=i > 0) for i, name in enumerate(block.header)]
                print_table(console, columns, [("", block.rows)], block.caption)
            elif isinstance(block, Text):
                print_line(console, f"[dim]{escape(block.text)}[/dim]")


WORKSPACE = "workspace"


def resolve(name: str, scratch: Path) -> Run:
    """Return the run called `name`, downloading into `scratch` if necessary. Raises UserError for an unknown name."""
    from windtunnel.operations.revisions import known_names, run_at
    from windtunnel.reporting.compare.runs import run_in

    directory = Path("." if name == WORKSPACE else name)
    if name == WORKSPACE or _has_results(directory):
        return run_in(directory, name, "as it is now" if name == WORKSPACE else "directory")
    run = run_at(name, scratch) or _mlflow_run(name, scratch)
    if run is not None:
        return run
    if directory.is_dir():
        return run_in(directory, name)  # which says what is missing there
    near = nearest(name, known_names())
    hint = f" Did you mean '{near}'?" if near else ""
    raise UserError(
        f"{shown(name)} is no directory of results, git revision, DVC experiment or MLflow run.{hint} "
        f"See dvc exp list, git branch, windtunnel ui"
    )


def _has_results(directory: Path) -> bool:
    return any(any(directory.glob(f"{inside}robustness/*/{METADATA_FILE}")) for inside in ("", "reports/"))


def _mlflow_run(name: str, scratch: Path) -> Run | None:
    from windtunnel.operations.revisions import fetch_run, run_of_lock
    from windtunnel.reporting.compare.runs import numbers_in, run_in

    tracking = load_params().tracking
    label = fetch_run(name, scratch, tracking_uri(tracking.uri), tracking.experiment)
    if label is None:
        return None
    if _has_results(scratch):
        return run_in(scratch, label, "MLflow run, with its tensors")
    try:
        return run_of_lock(scratch, label, "MLflow run")
    except UserError as error:
        return numbers_in(scratch, label, "MLflow run", str(error))


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--bundle", type=click.Path(path_type=Path, file_okay=False), help="Where static files go, in place of a server."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8008, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--open/--no-open", "open_it", default=True, help="Open a browser.")
def view(*, runs: tuple[str, ...], bundle: Path | None, port: int, host: str, open_it: bool) -> None:
    """Browse the samples: filter by class, verdict, assessment, flip, distance and confidence; sort; see every example.

    A run is a directory of results, `workspace` (where none is given), a git revision, a DVC experiment or an MLflow run. The
    samples are those of the first run; the others are matched by name, and a sample that flipped between runs can be found.
    The server answers only a browser that has opened the printed address, whose token is new at every start; the part behind
    `#` in the browser's address line is the selection and the sample that is open, to be shared.

    \b
    Examples:
      windtunnel view
      windtunnel view main workspace          which samples flipped?
      windtunnel view --bundle samples        static files: open samples/index.html, or put them on any web server
    """  # noqa: D301
    from windtunnel.reporting.view.site import site, write_site

    with tempfile.TemporaryDirectory() as scratch:
        resolved_runs = [resolve(name, Path(scratch) / str(i)) for i, name in enumerate(runs or ("workspace",))]
        if bundle is not None:
            size = sum(path.stat().st_size for path in write_site(resolved_runs, bundle))
            click.echo(f"{bundle / 'index.html'}  ({size / 1e6:.1f} MB in all)")
            return
        try:
            httpd = ViewServer(site(resolved_runs, served=True), host, port)
        except (OSError, UnicodeError) as error:  # a name that no encoding of host names takes
            reason = getattr(error, "strerror", None) or "no name of a host"
            raise UserError(
                f"view: {shown(host)}:{port} cannot be used ({reason}); choose another --host or --port"
            ) from error
        for number in (signal.SIGINT, signal.SIGTERM):  # the way to end a server is no interruption
            signal.signal(number, signal.default_int_handler)
        click.echo(f"{httpd.address}  (Ctrl-C ends it)")
        if open_it:
            webbrowser.open(httpd.address)
        try:
            httpd.serve_forever()
        except KeyboardInterrupt:
            httpd.server_close()
            click.echo("\nview: ended")


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
@click.option("--html", type=OutputPath(".html", ".htm"), help="Also write it as HTML with pictures.")
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
      windtunnel sweep --set model.head.label=all        each label of a multi-label model, and every label by image
    """  # noqa: D301
    from windtunnel.operations.experiments import grid, run_experiments
    from windtunnel.operations.revisions import run_at
    from windtunnel.reporting.compare.comparison import compare_runs
    from windtunnel.reporting.compare.images import LABEL

    axes = dict([_axis(text, "budget") for text in budgets] + [_axis(text, "") for text in sets])
    if axes.get(LABEL) == ["all"]:
        axes[LABEL] = load_params().model.head.labels or axes[LABEL]
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
    from windtunnel.operations.tracking.state import state_digest
    from windtunnel.operations.tracking.sweep import Point, record_sweep

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
