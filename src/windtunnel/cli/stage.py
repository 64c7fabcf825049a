"""`windtunnel stage`: run one stage of the pipeline, without DVC."""

from __future__ import annotations

import os

import click

from windtunnel.operations.stages.run import run_stage, stage_of
from windtunnel.runtime.placement import VARIABLE, require_placement
from windtunnel.runtime.stage_log import log_stage


@click.command()
@click.argument("words", metavar="STAGE [NAME]", nargs=-1, required=True)
@click.option(
    "--executor",
    "where",
    metavar="WHERE",
    help="here, processes:4, ray or slurm:8: where its work is done, in place of WINDTUNNEL_EXECUTOR",
)
def stage(words: tuple[str, ...], where: str | None) -> None:
    """Run STAGE in the current directory; of a family of assessments, the entry NAME; what it reads must be there.

    `dvc.yaml` calls it for every stage, and `dvc repro` in the right order.

    \b
    Examples:
      python -m windtunnel stage resolve
      python -m windtunnel stage attack pgd
      python -m windtunnel stage attack pgd --executor processes:4
    """  # noqa: D301
    if where is not None:
        os.environ[VARIABLE] = where
    require_placement()
    chosen, name = stage_of(*words)
    with log_stage(chosen, name):
        run_stage(chosen, name)
