"""`windtunnel stage`: run one stage of the pipeline, without DVC."""

from __future__ import annotations

import click

from windtunnel.core.narration import narrated
from windtunnel.operations.stages.run import run_stage, stage_of


@click.command()
@click.argument("words", metavar="STAGE [NAME]", nargs=-1, required=True)
def stage(words: tuple[str, ...]) -> None:
    """Run STAGE in the current directory; of a family of assessments, the entry NAME; what it reads must be there.

    `dvc.yaml` calls it for every stage, and `dvc repro` in the right order.

    \b
    Examples:
      python -m windtunnel stage resolve
      python -m windtunnel stage attack pgd
    """  # noqa: D301
    chosen, name = stage_of(*words)
    with narrated(chosen, name):
        run_stage(chosen, name)
