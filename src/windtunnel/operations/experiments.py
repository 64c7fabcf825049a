"""A grid of params as DVC experiments: checked first, queued, run, and named so that they are found again."""

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.boundary.params_file import override, read_params
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate
from windtunnel.operations.revisions import experiments as kept_experiments
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.runtime.shutdown import end_left_behind, marked_environment

MOST_EXPERIMENTS = 1000  # of one sweep: each is validated first, and a run of the pipeline


@dataclass(frozen=True, slots=True)
class Experiment:
    """One point of the grid: its DVC name, and the params that it overrides, as written."""

    name: str
    overrides: tuple[tuple[str, str], ...]


def grid(prefix: str, axes: Mapping[str, Sequence[str]], path: Path = PARAMS_FILE) -> list[Experiment]:
    """Every combination of the values of `axes` (`budget.epsilon` -> `2/255`, `4/255`), the last axis fastest.

    Raises UserError, naming the combination, where params.yaml with these values would be refused, and for more than
    `MOST_EXPERIMENTS` combinations.
    """
    if "tracking.uri" in axes:  # its password would stand in the names of experiments
        raise UserError("sweep: tracking.uri is where results go; set it in params.yaml or as MLFLOW_TRACKING_URI")
    experiments: dict[str, Experiment] = {}
    columns = [list(dict.fromkeys(column)) for column in axes.values()]
    if (count := math.prod(map(len, columns))) > MOST_EXPERIMENTS:
        raise UserError(
            f"sweep: a grid of {count} experiments ({' x '.join(str(len(c)) for c in columns)}); {MOST_EXPERIMENTS} at most"
        )
    for values in itertools.product(*columns):
        overrides = tuple(zip(axes, values, strict=True))
        suffix = "-".join(f"{key.rsplit('.', 1)[-1]}-{value}" for key, value in overrides)
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{prefix}-{suffix}")
        if name in experiments:
            raise UserError(
                f"sweep: {dict(overrides)} and {dict(experiments[name].overrides)} would share the name {name}"
            )
        validate(_overridden(path, overrides), f"{path} with {', '.join(f'{k}={v}' for k, v in overrides)}")
        experiments[name] = Experiment(name, overrides)
    return list(experiments.values())


def run_experiments(experiments: Sequence[Experiment], jobs: int) -> list[str]:
    """Queue the experiments, run them `jobs` at a time, and return the names of those that failed.

    An experiment of the same name, from an earlier sweep, is replaced.
    Each runs in a work tree of its own, so they share nothing but the cache and the tracking store, which locks. DVC's
    own output goes to stderr. Raises UserError where DVC refuses, or where something else is queued already.
    """
    names = {experiment.name for experiment in experiments}
    end_left_behind(Path.cwd())  # a killed sweep leaves DVC's queue worker, which holds DVC's lock
    queued = _queued()
    if other := [name for name in queued if name not in names]:
        raise UserError(
            f"sweep: {len(other)} other experiments are queued ({', '.join(other[:5])}) and would run along; run them "
            f"(dvc queue start) or drop them (dvc queue remove --queued) first"
        )
    if queued:  # left by a sweep that was ended
        _dvc("queue", "remove", "--queued")
    _drop_orphans()
    before = kept_experiments()
    for experiment in experiments:
        # Not --force, which would also recompute everything: what the replaced one computed comes from the cache.
        if experiment.name in before:
            _dvc("exp", "remove", experiment.name)
        sets = [part for key, value in experiment.overrides for part in ("--set-param", f"{key}={value}")]
        _dvc("exp", "run", "--queue", "--name", experiment.name, *sets)
    run_all = [sys.executable, "-m", "dvc", "exp", "run", "--run-all", "--jobs", str(jobs)]
    subprocess.run(run_all, stdout=sys.stderr, check=False, env=marked_environment())
    after = kept_experiments()
    return [experiment.name for experiment in experiments if experiment.name not in after]


def _overridden(path: Path, overrides: Sequence[tuple[str, str]]) -> dict[str, object]:
    raw = read_params(path)
    for key, text in overrides:
        override(raw, key, text, "sweep")
    return raw


def _queued() -> list[str]:
    from dvc.repo import Repo

    with Repo() as repo:
        return [str(entry.name or entry.stash_rev[:7]) for entry in repo.experiments.celery_queue.iter_queued()]


def _drop_orphans() -> None:
    """Drop what DVC's queue lists as running although no worker is left, as after a kill: DVC would wait for it for ever.

    Raises UserError where a worker is left that no killed sweep has started.
    """
    from dvc.repo import Repo

    with Repo() as repo:
        queue = repo.experiments.celery_queue
        tasks = queue.celery.iter_processed()
        orphans = [task for task in tasks if not queue.celery.AsyncResult(task.headers["id"]).ready()]
        if orphans and queue.worker_status():
            raise UserError(
                f"sweep: {len(orphans)} experiments of DVC's queue are running; wait for them (dvc queue status), or end them: "
                f"dvc queue stop --kill"
            )
        for task in orphans:
            queue.celery.purge(task.delivery_tag)


def _dvc(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"sweep: dvc {arguments[0]} {arguments[1]}: {' '.join(done.stderr.split())[:400]}")
