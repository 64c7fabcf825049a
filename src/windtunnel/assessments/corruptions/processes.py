"""Corruption jobs over processes: results in order, memory bounded, nobody idle.

The worker processes import this module: it must not import torch, which takes longer than many a suite.
"""

from __future__ import annotations

import multiprocessing as mp
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from windtunnel.assessments.corruptions.corrupt import Job, run_job
from windtunnel.core.endings import deaf_children, no_main_module
from windtunnel.core.errors import UserError

# How much a job should be, in pixels: enough to outweigh handing it over, few enough for all to finish together.
CHUNK = 2**19
AHEAD = 8  # jobs for each process that are in work, or done and not fetched


def run_jobs(jobs: Iterable[Job], workers: int) -> Iterator[np.ndarray]:
    """The results of `jobs` in their order, never more than `AHEAD` for each process, so that memory stays bounded.

    `workers` processes corrupt, this one among them: while the result that is next is not there yet, it does a job
    itself. So it is never idle, not even while the others start.
    Raises UserError, in one line, where a job fails or a process dies.
    """
    if workers == 1:
        yield from map(run_job, jobs)
        return
    todo, where = iter(jobs), "the first"
    # spawn: forking a process that runs torch threads can hang.
    with ProcessPoolExecutor(workers - 1, mp_context=mp.get_context("spawn")) as pool:
        pending: deque[tuple[Job, Future[np.ndarray]]] = deque()
        try:
            while True:
                while len(pending) < AHEAD * workers:
                    # Two jobs for each process: the one it does, and the one it goes on with.
                    busy = sum(not result.done() for _, result in pending) >= 2 * (workers - 1)
                    if (busy and pending[0][1].done()) or (job := next(todo, None)) is None:
                        break
                    with no_main_module(), deaf_children():  # a process may be started for it
                        pending.append((job, _done(job) if busy else pool.submit(run_job, job)))
                if not pending:
                    return
                job, result = pending.popleft()
                where = f"{job.corruption} at severity {job.severity}"
                yield result.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # what is queued may take minutes
            raise
        except BrokenProcessPool as error:
            raise UserError(
                f"a process that corrupts images died ({where}): killed, perhaps for want of memory. What is finished is "
                f"kept: run again, with workers: 1 if memory is short"
            ) from error


def _done(job: Job) -> Future[np.ndarray]:
    result: Future[np.ndarray] = Future()
    result.set_result(run_job(job))
    return result
