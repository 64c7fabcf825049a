"""Run units of work in this process, in other processes of this machine, on a Ray cluster or as jobs of Slurm.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here` (the
default), `processes:4`, `ray`, `ray:8` or `slurm:8`. It enters no params, nothing that is resolved and no result: a run on a
cluster and one on a laptop share one cache.
"""

from __future__ import annotations

from windtunnel.runtime.executors.interface import Executor, SerialExecutor, is_inside_a_unit
from windtunnel.runtime.placement import Placement, placement

# Worker processes for expensive work (solvers, large corruption suites) where no executor is configured.
DEFAULT_WORKERS = 2


def executor(processes: int = 1) -> Executor:
    """Return the executor that the environment or the local file configures; by default `processes` workers of this machine.

    Raises UserError as `placement`.
    """
    if is_inside_a_unit():
        return SerialExecutor()
    configured = placement() or (Placement("processes", processes) if processes > 1 else Placement("here"))
    if configured.kind == "processes":
        from windtunnel.runtime.executors.processes import ProcessExecutor

        assert configured.workers is not None
        return ProcessExecutor(configured.workers)
    if configured.kind == "ray":
        from windtunnel.runtime.executors.ray_cluster import RayExecutor

        return RayExecutor(configured.workers)
    if configured.kind == "slurm":
        from windtunnel.runtime.executors.slurm_jobs import SlurmExecutor

        return SlurmExecutor(configured.workers)
    return SerialExecutor()
