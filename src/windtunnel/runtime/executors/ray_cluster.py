"""Run units of work on a Ray cluster (Moritz et al. 2018, OSDI): actors with the model and the samples, which are sent once.

`RAY_ADDRESS` names the cluster; without it Ray joins what `ray start` began on this machine, or starts one for this process (`local`:
always that). Workers return tensors, so no file system is shared.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors.dispatcher import Dispatcher, WorkerEvent, WorkerPool
from windtunnel.runtime.executors.payload import Payload, WorkerServer, require_equal, unpickled, versions

_TOO_SLOW, _STARTS = "timed out during startup", 5  # Ray gives itself 30 s to start, which a busy machine may exceed


class Actor(WorkerServer):
    """A worker server in a Ray actor, which also reports its versions."""

    def ready(self, payload: Payload) -> tuple[bytes, dict[str, str]]:
        """Load the work; return (answer of `load`, versions)."""
        return self.load(payload), versions()


def spread_over_actors(
    payload: Payload, units: Sequence[Any], name: str, limit: Callable[[Any], float] | None, workers: int | None
) -> Iterator[tuple[int, Any]]:
    """Yield results as `Executor.results` does, from `workers` actors; for None as many as the cluster has processors."""
    ray = _connect()
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
    pool = _pool_of(ray, min(workers or processors, processors))
    yield from Dispatcher(pool, ray.put(payload), units, name, limit).results()


class _ActorHandle:
    """Driver's handle of an actor, whose channel is the reference of its pending answer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self.channel = ray, actor, None

    def load(self, payload: Any) -> None:  # it lies in the object store
        self.channel = self._actor.ready.remote(payload)

    def submit(self, unit: object) -> None:
        self.channel = self._actor.do.remote(unit)

    def read_event(self) -> WorkerEvent:
        try:
            reply = self._ray.get(self.channel)
        except self._ray.exceptions.RayTaskError as error:  # ours, not of the work, whose exceptions are answers
            return WorkerEvent("raised", error.cause or error)
        except self._ray.exceptions.RayError as error:
            return WorkerEvent("died", _why(error))
        answer, computes_with = reply if isinstance(reply, tuple) else (reply, None)
        kind, content = unpickled(answer)
        return WorkerEvent(kind, computes_with if kind == "ready" else content)

    def end(self) -> None:
        self._ray.kill(self._actor)


def _why(error: Exception) -> str:
    """Return the first line of Ray's error with its exit type (NODE_OUT_OF_MEMORY), which comes many lines later."""
    text = str(error).strip() or type(error).__name__
    how = re.search(r"Worker exit type: (\w+)", text)
    return " ".join(text.splitlines()[0].split())[:200] + (f" {how[1]}" if how else "")


_pools: dict[tuple[int, str], WorkerPool] = {}  # of this process: at most one, by its size and its session of Ray


def _pool_of(ray: Any, size: int) -> WorkerPool:
    """Return the pool of this process, replaced by a new one where its size or cluster differs."""
    session = str(ray.get_runtime_context().get_job_id())
    if (size, session) not in _pools:
        while _pools:
            (_, session_before), pool = _pools.popitem()
            if session_before == session:
                pool.end()
        # An accelerator of the cluster is shared by all: each gets its fraction. Where the driver has none, nobody needs one.
        mine = versions()
        gpus = ray.cluster_resources().get("GPU", 0) if mine["device"] != "cpu" else 0
        fraction = math.floor(min(1.0, gpus / size) * 10_000) / 10_000
        kind = ray.remote(num_cpus=1, num_gpus=fraction)(Actor)
        _pools[size, session] = WorkerPool(
            size,
            start=lambda: _ActorHandle(ray, kind.remote()),
            wait=lambda answers, seconds: ray.wait(answers, num_returns=1, timeout=seconds)[0],
            check_worker=lambda ready: require_equal(mine, ready, "a worker of the Ray cluster"),
        )
    return _pools[size, session]


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
