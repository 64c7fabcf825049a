"""Commands that talk to MLflow: `track`, `ui`, `retrain`, `champion`, `promote` and `rollback`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from windtunnel.boundary.mlflow_server import ARTIFACTS, is_answering, main_root, tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.cli.output import OutputPath, headings, print_table, table_console
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.operations.dvc_files import require_whole_files
from windtunnel.operations.stages.track import report_delivery
from windtunnel.records.files import replacing
from windtunnel.runtime.credentials import without_credentials
from windtunnel.runtime.supervised import ends_with_parent


@click.command()
@click.option(
    "--strict", is_flag=True, help="Fail (exit 2) where the server cannot be reached, instead of filling the outbox."
)
def track(*, strict: bool) -> None:
    """Log the artifacts of the last run to MLflow, unless they are logged already; deliver what waits in the outbox.

    \b
    Examples:
      windtunnel track
      MLFLOW_TRACKING_URI=http://tracking:5000 windtunnel track --strict
    """  # noqa: D301
    from windtunnel.operations.tracking.track import track as track_state

    report_delivery(track_state(strict=strict))


_VERSIONS = headings(
    "alias", "version", "gate", "last retraining", "why", "assessment run", typed=("alias", "version", "assessment run")
)
_PATIENCE = 180  # seconds; MLflow's server takes about 20 to answer on two cores


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--open/--no-open", "open_it", default=True, help="Open a browser, where there is a screen.")
@click.pass_context
def ui(ctx: click.Context, *, port: int, host: str, open_it: bool) -> None:
    """Serve the MLflow UI on this project's store, or find it on its server, and open the list of runs.

    The list shows the headline metrics, the budget and the verdicts as columns.

    \b
    Examples:
      windtunnel ui --port 5001
      MLFLOW_TRACKING_URI=http://tracking:5000 windtunnel ui
    """  # noqa: D301
    from windtunnel.operations.tracking.view import share_headline_view

    tracking = load_params().tracking
    uri = tracking_uri(tracking.uri)
    try:
        page = share_headline_view(uri, tracking.experiment)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like
        raise UserError(f"tracking: {without_credentials(uri)} cannot be reached ({type(error).__name__})") from error
    if uri.startswith("http"):
        _announce(without_credentials(uri).rstrip("/") + page, open_it)
        return
    root = f"http://{host}:{port}"
    if is_answering(root):
        raise UserError(f"ui: something is served on {root} already; choose another --port")
    click.echo(f"starting MLflow on {without_credentials(uri)} (about 20 s)")
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--workers", "1", "--default-artifact-root", (main_root() / ARTIFACTS).as_uri()]
    # A session of its own: MLflow's server starts processes, and all of them are to end with this one.
    # The store by the environment: everybody on the machine can read a command line, and an address may hold a password.
    server = subprocess.Popen(command, start_new_session=True, env={**os.environ, "MLFLOW_BACKEND_STORE_URI": uri})
    for number in (signal.SIGINT, signal.SIGTERM):  # the way to end a server is no interruption
        signal.signal(number, signal.default_int_handler)
    try:
        _wait(root, server)
        _announce(root + page, open_it)
        click.echo("Ctrl-C ends it")
        ctx.exit(server.wait())
    except KeyboardInterrupt:
        ctx.exit(0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _announce(address: str, open_it: bool) -> None:
    click.echo(f"the runs: {address}")
    screen = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if open_it and screen:
        webbrowser.open(address)


def _wait(root: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_answering(root):
        if server.poll() is not None:
            raise UserError(f"ui: MLflow's server ended with exit code {server.returncode}; its own words are above")
        if time.monotonic() > deadline:
            raise UserError(f"ui: MLflow's server did not answer on {root} within {_PATIENCE} s")
        time.sleep(0.3)


@click.command()
@click.option(
    "--summary",
    type=OutputPath(".md", ".markdown", ".txt", ""),
    help="Also write the summary, as Markdown, to this file.",
)
@click.option("--force", is_flag=True, help="Run it although nothing changed.")
@click.option("--allow-dirty", is_flag=True, help="Although the work tree has changes that are not committed.")
@click.pass_context
def retrain(ctx: click.Context, *, summary: Path | None, force: bool, allow_dirty: bool) -> None:
    """Train on the data of now, assess, and promote the model if it passes the gate and is not worse than the champion.

    Where neither data nor code nor params changed nothing runs, and the end of last time is said again, with its exit code. A
    retraining that was killed is finished by the next.

    \b
    Exit codes:
      0   promoted, or the champion's own weights again
      10  not promoted: the champion stays
      20  the evaluation is unsound: the champion stays
      30  no decision: no registry, a stage that failed, or another retraining is running
      2   params.yaml, data or work tree need fixing

    \b
    Examples:
      windtunnel retrain
      windtunnel retrain --summary reports/retrain.md
    """  # noqa: D301
    from windtunnel.operations.retrain import only_one, summary_markdown
    from windtunnel.operations.retrain import retrain as flow
    from windtunnel.operations.tracking.registry import open_registry

    require_whole_files()
    with only_one(main_root() / ".cache" / "windtunnel"):
        registry = open_registry(load_params().tracking)
        # Stages run in other folders too, and all of them must log to one store.
        os.environ["MLFLOW_TRACKING_URI"] = registry.uri
        result = flow(registry, run_pipeline, run_stage, allow_dirty=allow_dirty, force=force)
    text = summary_markdown(result)
    if summary:
        with replacing(summary) as temporary:
            temporary.write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    ctx.exit(result.exit_code)


def run_pipeline(stages: Sequence[str], *, force: bool = False) -> None:
    """Bring stages and their dependencies up to date, or all; with `force` run only these, even if unchanged."""
    command = ["dvc", "repro", "--force", "--single-item"] if force else ["windtunnel", "repro"]
    _run([sys.executable, "-m", *command, *stages], Path())


def run_stage(folder: Path, stage: Sequence[str]) -> None:
    """One stage, without DVC, in a folder that has its own params.yaml and reports/."""
    _run([sys.executable, "-m", "windtunnel", "stage", *stage], folder)


def _run(command: list[str], folder: Path) -> None:
    # The stages are modules of this repository, found from another folder only by its path.
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    # A killed retrain takes what it started along: it would hold DVC's lock for the rest of the run.
    first = ends_with_parent() if sys.platform == "linux" else None
    done = subprocess.run(command, cwd=folder, env=environment, check=False, preexec_fn=first)
    if done.returncode:
        shown = " ".join(command[1:])
        raise InfrastructureError(
            f"retrain: python {shown} failed with exit code {done.returncode}; its lines above say why"
        )


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
    from windtunnel.operations.retrain import REASONS, STATUS, fetch_champion
    from windtunnel.operations.retrain import reassess as reassess_champion
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
    named = {alias: registry.alias(alias) for alias in (CHAMPION, CHALLENGER, PREVIOUS)}
    newest = registry.versions()[:1]  # an unsound one has no alias
    if newest and newest[0].number not in {version.number for version in named.values() if version}:
        named["-"] = newest[0]
    rows = []
    for alias, version in named.items():
        if version:
            ended, why = version.tags.get(STATUS, "-").replace("_", " "), version.tags.get(REASONS, "")
            reasons = why or version.tags.get("gate.reasons", "")
            rows.append((alias, version.number, version.decision, ended, reasons, version.run_id))
    if rows:
        print_table(table_console(), _VERSIONS, [("", rows)])
    else:
        click.echo(f"{registry.model}: no version yet")


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
    from windtunnel.operations.retrain import promote_last_run, promote_version
    from windtunnel.operations.tracking.registry import open_registry

    registry = open_registry(load_params().tracking)
    if number is not None:
        version = promote_version(registry, number, force=force)
    else:
        version = promote_last_run(registry, force=force, allow_dirty=allow_dirty)
    click.echo(f"promote: {version} is the champion")


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
