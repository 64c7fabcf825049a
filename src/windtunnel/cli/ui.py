"""`windtunnel ui`: the MLflow UI on the store that `track` writes to, with the headline columns chosen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import webbrowser

import click

from windtunnel.boundary.mlflow_server import ARTIFACTS, is_answering, main_root, tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.runtime.credentials import without_credentials

_PATIENCE = 180  # seconds; MLflow's server takes about 20 to answer on two cores


@click.command()
@click.option("--port", type=int, default=5000, show_default=True)
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
