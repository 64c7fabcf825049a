"""Run units of work as jobs of Slurm, through submitit.

A job computes several units and ends, so that the scheduler can place short jobs between long ones. Jobs and driver share the
folder where the run was started. Partition, account and memory are Slurm's own variables (`SBATCH_PARTITION`,
`SBATCH_ACCOUNT`, `SBATCH_MEM_PER_CPU`). `WINDTUNNEL_SLURM=local` starts processes of this machine in place of jobs.
"""

import math
import os
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors.dispatcher import DEATHS, Lost
from windtunnel.runtime.executors.payload import Payload, WorkerServer, require_equal, unpickled, versions
from windtunnel.runtime.placement import batch_limit

CLUSTER = "WINDTUNNEL_SLURM"
FOLDER = Path(".cache/windtunnel/slurm")  # pickled work and results, shared by driver and jobs
DEFAULT_JOBS = 8
JOBS_PER_WORKER = 4  # jobs that one place in the queue takes in turn: a lost job costs a quarter of its work
_SHARE = 0.5  # of a job's time limit, after which it begins no further unit and returns what it has
_LOOK_EVERY = 0.2  # seconds


def compute(payload: Payload, units: Sequence[Any], seconds: float) -> tuple[dict[str, str], list[bytes]]:
    """Compute units, in a job, until `_SHARE` of its seconds are over.

    Returns (versions of this machine, answers of `WorkerServer` for the first units; at least one).
    """
    until = time.monotonic() + _SHARE * seconds
    server = WorkerServer()
    opened = server.load(payload)
    if unpickled(opened)[0] == "raised":
        return versions(), [opened]
    answers: list[bytes] = []
    for unit in units:
        if answers and time.monotonic() > until:
            break
        answers.append(server.do(unit))
    return versions(), answers


def spread_over_jobs(
    payload: Payload, units: Sequence[Any], name: str, limit: Callable[[Any], float] | None, workers: int | None
) -> Iterator[tuple[int, Any]]:
    """Yield results as `Executor.results` does, with at most `workers` jobs in the queue; `DEFAULT_JOBS` for None.

    A job of several units that dies is split; a unit alone is tried again.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=FOLDER)).resolve()
    size = min(workers or DEFAULT_JOBS, len(units))
    n_units = math.ceil(len(units) / (JOBS_PER_WORKER * size))
    waiting = deque([*range(start, min(start + n_units, len(units)))] for start in range(0, len(units), n_units))
    running: dict[Any, list[int]] = {}
    deaths: Counter[int] = Counter()
    mine = versions()
    try:
        while waiting or running:
            while waiting and len(running) < size:
                indices = waiting.popleft()
                seconds = sum(map(limit, (units[i] for i in indices))) if limit else batch_limit()
                queue = _queue(folder, seconds, gpus=int(mine["device"] != "cpu"))
                running[queue.submit(compute, payload, [units[i] for i in indices], seconds)] = indices
            finished = [job for job in running if job.done()]
            for job in finished:
                yield from _take(job, running.pop(job), waiting, deaths, mine)
            if not finished:
                time.sleep(_LOOK_EVERY)
    finally:
        for job in running:
            job.cancel(check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _take(
    job: Any, indices: list[int], waiting: deque[list[int]], deaths: Counter[int], mine: dict[str, str]
) -> Iterator[tuple[int, Any]]:
    """Yield what a finished job computed; append to `waiting` what is to be computed again or is still missing."""
    try:
        theirs, answers = job.result()
    except Exception as error:  # submitit's own errors: the job was killed, or left no result
        if len(indices) > 1:
            waiting.extend([index] for index in indices)
            return
        (index,) = indices
        deaths[index] += 1
        if deaths[index] < DEATHS:
            waiting.append(indices)
        else:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            yield index, Lost(f"its job died ({reason[:200]}), {DEATHS} times")
        return
    require_equal(mine, theirs, "a job of Slurm")
    for index, answer in zip(indices, answers, strict=False):
        kind, content = unpickled(answer)
        if kind == "raised":
            raise content
        yield index, content
    if rest := indices[len(answers) :]:
        waiting.append(rest)


def _queue(folder: Path, seconds: float, gpus: int) -> Any:
    """Return submitit's executor for jobs of one processor. Raises UserError where this machine cannot submit to Slurm."""
    import submitit

    cluster = os.environ.get(CLUSTER, "slurm")
    if cluster not in {"slurm", "local"}:
        raise UserError(f"{CLUSTER}: {cluster!r} is no cluster; write slurm or local")
    try:
        queue = submitit.AutoExecutor(folder=folder, cluster=cluster)
    except RuntimeError as error:  # submitit looks for srun
        raise UserError(f"executor slurm: this machine submits no jobs ({error}); run it on a login node") from error
    queue.update_parameters(
        timeout_min=math.ceil(seconds / 60), gpus_per_node=gpus, slurm_cpus_per_task=1, slurm_job_name="windtunnel"
    )
    return queue
