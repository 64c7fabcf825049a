"""`windtunnel repro`: what `dvc repro` does, with several stages at once."""

from __future__ import annotations

import click

from windtunnel.core.machine import usable_processors
from windtunnel.operations.parallel import reproduce, visible_gpus
from windtunnel.runtime.placement import require_placement


@click.command()
@click.argument("stages", nargs=-1)
@click.option("--jobs", type=click.IntRange(1), help="Stages at once at most; by default as many as processors.")
@click.option("--pull/--no-pull", default=None, help="Fetch missing results from the DVC remote, if there is one.")
def repro(stages: tuple[str, ...], jobs: int | None, *, pull: bool | None) -> None:
    """Run what changed, as `dvc repro` does, with stages that do not depend on each other at the same time.

    The results, dvc.lock and DVC's cache are the same as after `dvc repro`. Nothing is computed that dvc.lock and the
    cache, the cache of runs, or the remote can restore. On GPUs each stage has one GPU for itself.

    \b
    Examples:
      windtunnel repro
      windtunnel repro --jobs 4
      windtunnel repro attack@pgd
    """  # noqa: D301
    from windtunnel.boundary.params import load_params
    from windtunnel.operations.dvc_files import require_whole_files

    require_placement()
    require_whole_files()
    reproduce(stages, jobs or usable_processors(), visible_gpus(load_params().device), pull=pull)
