"""Commands around the graph of stages: `repro`, `status`, `repair` and `stage`."""

import json
import os
from dataclasses import asdict

import click

from windtunnel.boundary.params import load_params
from windtunnel.cli.output import counted, headings, print_table, table_console
from windtunnel.core.machine import usable_processors
from windtunnel.operations.dvc_files import drop_stale_stages, require_whole_files
from windtunnel.operations.dvc_files import repair as repair_files
from windtunnel.operations.parallel import reproduce, visible_gpus
from windtunnel.operations.resolve.status import Pending, pending_stages
from windtunnel.operations.stages.run import run_stage, stage_of
from windtunnel.runtime.placement import VARIABLE, require_placement
from windtunnel.runtime.stage_log import log_stage


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
    require_placement()
    require_whole_files()
    reproduce(stages, jobs or usable_processors(), visible_gpus(load_params().device), pull=pull)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="A list of stages with their reasons, for scripts.")
def status(*, as_json: bool) -> None:
    """Which stages `dvc repro` would run, why, and how long they took the last time. Nothing is run or written.

    \b
    Examples:
      windtunnel status
      windtunnel status --json
    """  # noqa: D301
    require_whole_files()
    pending = pending_stages()
    if as_json:
        click.echo(json.dumps([asdict(stage) for stage in pending], indent=2))
        return
    if not pending:
        click.echo("Nothing to run: every result matches the present params, files, versions and code.")
        return
    rows = [(stage.stage, "; ".join(stage.why), _time(stage)) for stage in pending if stage.why]
    print_table(table_console(), headings("stage", "why", "last time", typed=("stage",)), [("", rows)])
    if later := [stage.stage for stage in pending if not stage.why]:
        click.echo(f"and, where the results before them change: {', '.join(later)}")
    click.echo(_estimate(pending))


def _time(stage: Pending) -> str:
    if stage.redraws:
        return "redrawn only"
    workers = f" with {stage.workers} workers" if stage.workers > 1 else ""
    return "" if stage.seconds is None else f"{stage.seconds:.3g} s{workers}"


def _estimate(pending: list[Pending]) -> str:
    count = counted(len(pending), "stage")
    computed = [stage for stage in pending if not stage.redraws]
    seconds = [stage.seconds for stage in computed if stage.seconds is not None]
    unknown = len(computed) - len(seconds)
    if unknown and not seconds:
        return f"{count}; the time they take is not known on this machine yet."
    rest = f", and {counted(unknown, 'stage')} without a time yet" if unknown else ""
    return f"{count}; about {sum(seconds):.0f} s by their last runs{rest}."


@click.command()
def repair() -> None:
    """Repair DVC's files that a kill left empty or cut; `make repro` does it first. Nothing that was computed is lost.

    Stages that dvc.yaml no longer has are dropped from dvc.lock, where DVC would keep them.

    \b
    Example:
      windtunnel repair && dvc repro
    """  # noqa: D301
    damages = repair_files()
    for damage in damages:
        click.echo(f"repair: {damage.path} {damage.what}: repaired as by {damage.command}")
    if stale := drop_stale_stages():
        click.echo(f"repair: dvc.lock: stages that dvc.yaml no longer has are dropped: {', '.join(stale)}")
    if not damages and not stale:
        click.echo("repair: nothing is damaged")


@click.command()
@click.argument("stage_and_name", metavar="STAGE [NAME]", nargs=-1, required=True)
@click.option(
    "--executor",
    "where",
    metavar="WHERE",
    help="here, processes:4, ray or slurm:8: where its work is done, in place of WINDTUNNEL_EXECUTOR",
)
def stage(stage_and_name: tuple[str, ...], where: str | None) -> None:
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
    chosen, name = stage_of(*stage_and_name)
    with log_stage(chosen, name):
        run_stage(chosen, name)
