"""Run units of work on a Ray cluster (Moritz et al. 2018, OSDI): actors with the model and the samples, which are sent once.

`RAY_ADDRESS` names the cluster; without it Ray joins what `ray start` began on this machine, or starts one for this process (`local`:
always that). Workers return tensors, so no file system is shared.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors.dispatcher import Dispatcher, WorkerEvent
from windtunnel.runtime.executors.interface import Lost, SerialExecutor
from windtunnel.runtime.executors.payload import Payload, WorkerServer, pack_or_warn, require_equal, unpickled, versions

U = TypeVar("U")
R = TypeVar("R")
_TOO_SLOW, _STARTS = "timed out during startup", 5  # Ray gives itself 30 s to start, which a busy machine may exceed


class Actor(WorkerServer):
    """A worker server in a Ray actor, which also reports its versions."""

    def ready(self, payload: Payload) -> tuple[bytes, dict[str, str]]:
        """Load the work; return (answer of `load`, versions)."""
        return self.load(payload), versions()


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Executor with `workers` actors; with None, as many as the cluster has processors."""

    workers: int | None

    def results(
        self, work: Callable[[U], R], units: Sequence[U], name: str, limit: Callable[[U], float] | None = None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield results as `Executor.results` does."""
        if not units:
            return
        ray = _connect()
        payload = pack_or_warn(work, name)
        if payload is None:
            yield from SerialExecutor().results(work, units, name)
            return
        processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
        pool = _pool_of(ray, min(self.workers or processors, processors))
        yield from Dispatcher(pool, ray.put(payload), units, name, limit).results()


class _ActorHandle:
    """Driver's handle of an actor, with the reference of its pending answer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self.pending = ray, actor, None

    def load(self, payload: Any) -> None:
        """Begin to load the work; the payload lies in the object store."""
        self.pending = self._actor.ready.remote(payload)

    def submit(self, unit: object) -> None:
        """Begin a unit."""
        self.pending = self._actor.do.remote(unit)

    def read_event(self) -> WorkerEvent:
        """Return the answer as an event, or how the actor died."""
        try:
            reply = self._ray.get(self.pending)
        except self._ray.exceptions.RayTaskError as error:  # ours, not of the work, whose exceptions are answers
            return WorkerEvent("raised", error.cause or error)
        except self._ray.exceptions.RayError as error:
            return WorkerEvent("died", _why(error))
        answer, computes_with = reply if isinstance(reply, tuple) else (reply, None)
        kind, content = unpickled(answer)
        return WorkerEvent(kind, computes_with if kind == "ready" else content)

    def end(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._actor)


def _why(error: Exception) -> str:
    """Return the first line of Ray's error with its exit type (NODE_OUT_OF_MEMORY), which comes many lines later."""
    text = str(error).strip() or type(error).__name__
    how = re.search(r"Worker exit type: (\w+)", text)
    return " ".join(text.splitlines()[0].split())[:200] + (f" {how[1]}" if how else "")


class _RayPool:
    """Actors of one Ray cluster."""

    def __init__(self, ray: Any, size: int) -> None:
        self._ray, self.size, self.workers = ray, size, list[_ActorHandle]()
        # An accelerator of the cluster is shared by all: each gets its fraction. Where the driver has none, nobody needs one.
        mine = versions()
        gpus = ray.cluster_resources().get("GPU", 0) if mine["device"] != "cpu" else 0
        fraction = math.floor(min(1.0, gpus / size) * 10_000) / 10_000
        self._kind, self._mine = ray.remote(num_cpus=1, num_gpus=fraction)(Actor), mine

    def spawn(self) -> _ActorHandle:
        """Start one more actor."""
        self.workers.append(_ActorHandle(self._ray, self._kind.remote()))
        return self.workers[-1]

    def wait_events(self, workers: Sequence[_ActorHandle], seconds: float) -> list[tuple[_ActorHandle, WorkerEvent]]:
        """Return the events of `workers`, after waiting at most `seconds` for one."""
        by_reference = {worker.pending: worker for worker in workers}
        finished, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=seconds)
        return [(by_reference[answer], by_reference[answer].read_event()) for answer in finished]

    def check_worker(self, ready: Mapping[str, str]) -> None:
        """Raise UserError for a worker with other versions."""
        require_equal(self._mine, ready, "a worker of the Ray cluster")


class _SharedRayPool:
    """The pool of this process, reused for the next piece of work."""

    pool: _RayPool | None = None
    session: str = ""


def _pool_of(ray: Any, size: int) -> _RayPool:
    """Return the shared pool, replaced by a new one where its size or cluster differs."""
    pool, session = _SharedRayPool.pool, str(ray.get_runtime_context().get_job_id())
    if pool is None or (pool.size, _SharedRayPool.session) != (size, session):
        for worker in pool.workers if pool and _SharedRayPool.session == session else ():
            worker.end()
        pool, _SharedRayPool.session = _RayPool(ray, size), session
        _SharedRayPool.pool = pool
    return pool


def _connect() -> Any:
    """Connect to Ray and return its module. Raises UserError, in one line, where the cluster does not answer."""
    import ray

    for attempt in range(1, _STARTS + 1):
        if ray.is_initialized():
            break
        address = os.environ.get("RAY_ADDRESS")
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except Exception as error:  # connection errors of many kinds
            ray.shutdown()
            if _TOO_SLOW not in str(error) or attempt == _STARTS:
                raise UserError(f"RAY_ADDRESS: {address}: no Ray cluster answers there ({error})") from error
    return ray
