"""`windtunnel view`: every sample of one run or several, in the browser."""

from __future__ import annotations

import signal
import tempfile
import webbrowser
from pathlib import Path

import click

from windtunnel.core.errors import UserError


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--bundle", type=click.Path(path_type=Path, file_okay=False), help="Write static files to DIR instead of serving."
)
@click.option("--port", type=int, default=8008, show_default=True)
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
    from windtunnel.cli.resolve import resolve
    from windtunnel.reporting.view.serve import ViewServer
    from windtunnel.reporting.view.site import site, write_site

    with tempfile.TemporaryDirectory() as scratch:
        resolved_runs = [resolve(name, Path(scratch) / str(i)) for i, name in enumerate(runs or ("workspace",))]
        if bundle is not None:
            size = sum(path.stat().st_size for path in write_site(resolved_runs, bundle))
            click.echo(f"{bundle / 'index.html'}  ({size / 1e6:.1f} MB in all)")
            return
        try:
            httpd = ViewServer(site(resolved_runs, served=True), host, port)
        except OSError as error:
            raise UserError(f"view: {host}:{port} cannot be used ({error.strerror}); choose another --port") from error
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
