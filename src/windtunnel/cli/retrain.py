"""`windtunnel retrain`: the one command that a schedule runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from windtunnel.boundary.params import load_params
from windtunnel.cli.output import OutputFile
from windtunnel.core.errors import InfrastructureError
from windtunnel.records.files import replacing


@click.command()
@click.option(
    "--summary",
    type=OutputFile(".md", ".markdown", ".txt", ""),
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
    from windtunnel.boundary.mlflow_server import main_root
    from windtunnel.operations.dvc_files import require_whole_files
    from windtunnel.operations.retrain.flow import retrain as flow
    from windtunnel.operations.retrain.flow import summary_markdown
    from windtunnel.operations.retrain.lock import only_one
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
    """Bring some stages and what they need up to date, or all; with `force` run these alone, though nothing changed."""
    command = ["dvc", "repro", "--force", "--single-item"] if force else ["windtunnel", "repro"]
    _run([sys.executable, "-m", *command, *stages], Path())


def run_stage(folder: Path, stage: Sequence[str]) -> None:
    """One stage, without DVC, in a folder that has its own params.yaml and reports/."""
    _run([sys.executable, "-m", "windtunnel", "stage", *stage], folder)


def _run(command: list[str], folder: Path) -> None:
    # The stages are modules of this repository, found from another folder only by its path.
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        shown = " ".join(command[1:])
        raise InfrastructureError(
            f"retrain: python {shown} failed with exit code {done.returncode}; its lines above say why"
        )
