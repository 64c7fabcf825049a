"""Run units of work in this process, in other processes of this machine, on a Ray cluster or as jobs of Slurm.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here`,
`processes:4`, `ray`, `ray:8` or `slurm:8`. Where neither does, work begins in this process and goes on over all processors once
that saves time. It enters no params, nothing that is resolved and no result: a run on a cluster and one on a laptop share one cache.
"""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil

from windtunnel.core.machine import free_memory
from windtunnel.runtime.console import warn
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.executors.payload import NotPicklableError, Payload, pack, retain_freed_memory
from windtunnel.runtime.placement import inside_a_unit, is_inside_a_unit, placement, share_of_processors

U = TypeVar("U")
R = TypeVar("R")
# Worker processes for expensive work (solvers) where no executor is configured.
DEFAULT_WORKERS = 2
MOST_WORKERS = 8  # that are started without being asked for: each has a copy of the model
WORTH_WORKERS = 10.0  # seconds that other processes must save: each takes some 3 s of a processor to start

_most_workers = 1  # of all work of this process


def workers_used() -> int:
    """Return the largest number of workers that any work of this process was spread over; 1 for none."""
    return _most_workers


@dataclass(frozen=True, slots=True)
class Executor:
    """Computes units of work. kind: one of `placement.KINDS`. workers: at most; None for as many as the cluster has.

    is_default: nobody asked for this process, so that work goes on in other processes where that saves time.
    """

    kind: str = "here"
    workers: int | None = 1
    is_default: bool = False

    def results(
        self, work: Callable[[U], R], units: Sequence[U], name: str, limit: Callable[[U], float] | None = None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield (index in `units`, result of `work`), each as soon as it is finished.

        name: of the assessment, for messages. limit: seconds that a unit may take before its worker is ended and it is given
        up; without it `batch_limit()`, and a second try. Neither holds in this process, which nobody could end.
        Raises what `work` raises.
        """
        payload = None
        if units and self.kind != "here":
            try:
                payload = pack(work, for_this_machine=self.kind == "processes")
            except NotPicklableError as error:
                warn(f"{name}: runs in one process: {error}")
        if payload is None:
            retain_freed_memory()
            seconds, may_spread = 0.0, self.is_default and _has_one_thread()
            for index, unit in enumerate(units):
                if index and may_spread and (workers := _workers_worth(seconds / index, len(units) - index)) > 1:
                    may_spread, payload = False, _packed(work)
                    if payload is not None:
                        others = Executor("processes", workers)._spread(payload, units[index:], name, limit)
                        yield from ((index + later, result) for later, result in others)
                        return
                began = time.perf_counter()
                with inside_a_unit():
                    result = work(unit)
                seconds += time.perf_counter() - began
                yield index, result
        else:
            yield from self._spread(payload, units, name, limit)

    def _spread(
        self, payload: Payload, units: Sequence[U], name: str, limit: Callable[[U], float] | None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield results as `results` does, from other processes."""
        global _most_workers
        _most_workers = max(_most_workers, min(self.workers or 1, len(units)))
        if self.kind == "processes":
            from windtunnel.runtime.executors.processes import spread_over_processes

            yield from spread_over_processes(payload, units, name, limit, self.workers or 1)
        elif self.kind == "ray":
            from windtunnel.runtime.executors.ray_cluster import spread_over_actors

            yield from spread_over_actors(payload, units, name, limit, self.workers)
        else:
            from windtunnel.runtime.executors.slurm_jobs import spread_over_jobs

            yield from spread_over_jobs(payload, units, name, limit, self.workers)


def executor(processes: int = 1) -> Executor:
    """Return the executor that the environment or the local file configures; by default `processes` workers of this machine.

    Raises UserError as `placement`.
    """
    if is_inside_a_unit():
        return Executor()
    if (configured := placement()) is not None:
        return Executor(*configured)
    return Executor("processes", processes) if processes > 1 else Executor(is_default=True)


def _has_one_thread() -> bool:
    """Return True if this process computes as a worker does: with one thread, and on no accelerator."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.get_num_threads() == 1 and not torch.accelerator.is_available()


def _workers_worth(seconds: float, units: int) -> int:
    """Return how many processes to spread `units` over, each of which takes some `seconds`; 1 where that saves too little."""
    if seconds * units <= WORTH_WORKERS:
        return 1
    workers = min(share_of_processors(), MOST_WORKERS, units, free_memory() // psutil.Process().memory_info().rss)
    return workers if seconds * units * (1 - 1 / max(1, workers)) > WORTH_WORKERS else 1


def _packed(work: Callable[[U], R]) -> Payload | None:
    """Return the work for processes of this machine; None where only this process can do it."""
    try:
        return pack(work, for_this_machine=True)
    except NotPicklableError:
        return None
