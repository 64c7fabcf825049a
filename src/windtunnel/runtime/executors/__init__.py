"""Run units of work in this process, in other processes of this machine, on a Ray cluster or as jobs of Slurm.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here` (the
default), `processes:4`, `ray`, `ray:8` or `slurm:8`. It enters no params, nothing that is resolved and no result: a run on a
cluster and one on a laptop share one cache.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from windtunnel.runtime.console import warn
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.executors.payload import NotPicklableError, pack, retain_freed_memory
from windtunnel.runtime.placement import inside_a_unit, is_inside_a_unit, placement

U = TypeVar("U")
R = TypeVar("R")
# Worker processes for expensive work (solvers) where no executor is configured.
DEFAULT_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Executor:
    """Computes units of work. kind: one of `placement.KINDS`. workers: at most; None for as many as the cluster has."""

    kind: str = "here"
    workers: int | None = 1

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
            for index, unit in enumerate(units):
                with inside_a_unit():
                    result = work(unit)
                yield index, result
        elif self.kind == "processes":
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
    return Executor(*(placement() or (("processes", processes) if processes > 1 else ("here", 1))))
