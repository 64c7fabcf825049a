"""`windtunnel ui`: the MLflow UI on the store that `track` writes to."""

from __future__ import annotations

import subprocess
import sys

import click

from windtunnel.params.load import load_params
from windtunnel.tracking.store import main_root, tracking_uri


@click.command()
@click.option("--port", type=int, default=5000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
def ui(*, port: int, host: str) -> None:
    """Serve the MLflow UI on this project's store, or say where the server is.

    \b
    Example:
      windtunnel ui --port 5001
    """  # noqa: D301
    uri = tracking_uri(load_params().tracking.uri)
    if uri.startswith("http"):
        click.echo(f"the runs are on a server: open {uri}")
        return
    click.echo(f"serving {uri} on http://{host}:{port} (about 20 s to start; Ctrl-C ends it)")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        uri,
        "--host",
        host,
        "--port",
        str(port),
    ]
    raise SystemExit(subprocess.call([*command, "--default-artifact-root", (main_root() / "mlartifacts").as_uri()]))
