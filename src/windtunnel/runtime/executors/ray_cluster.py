"""Units of work over a Ray cluster (Moritz et al. 2018, OSDI): actors that hold the model and the samples, which are sent once.

`RAY_ADDRESS` names the cluster; without it Ray joins what `ray start` began on this machine, or starts one for this process (`local`:
always that). Workers return tensors, so no file system is shared.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from windtunnel.core.errors import UserError
from windtunnel.runtime.console import warn
from windtunnel.runtime.executors import Here, Lost
from windtunnel.runtime.executors.dispatcher import News, Shift
from windtunnel.runtime.executors.payload import Desk, Parcel, StaysHereError, packed, require_equal, versions

U = TypeVar("U")
R = TypeVar("R")
_TOO_SLOW, _STARTS = "timed out during startup", 5  # Ray gives itself 30 s to start, which a busy machine may exceed


class Actor(Desk):
    """In an actor: as in any worker, and it says what it computes with."""

    def ready(self, parcel: Parcel) -> tuple[bytes, dict[str, str]]:
        """(its answer, what it computes with)."""
        return self.open(parcel), versions()


@dataclass(frozen=True, slots=True)
class OnRay:
    """`workers` actors; as many as the cluster has processors where it is None."""

    workers: int | None

    def results(
        self,
        work: Callable[[U], R],
        units: Sequence[U],
        name: str,
        limit: Callable[[U], float] | None = None,
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """See `Executor`."""
        if not units:
            return
        ray = _connected()
        try:
            parcel = packed(work)
        except StaysHereError as error:
            warn(f"{name}: is done in one process: {error}")
            yield from Here().results(work, units, name)
            return
        there = max(1, int(ray.cluster_resources().get("CPU", 1)))
        crew = _crew_of(ray, min(self.workers or there, there))
        yield from Shift(crew, ray.put(parcel), units, name, limit).results()


class _Handle:
    """An actor as the driver sees it, and the answer it owes."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self.owes = ray, actor, None

    def open(self, parcel: Any) -> None:
        """See `Worker`; the parcel lies in the object store."""
        self.owes = self._actor.ready.remote(parcel)

    def give(self, unit: object) -> None:
        """See `Worker`."""
        self.owes = self._actor.do.remote(unit)

    def news(self) -> News:
        """What it said, or how it died."""
        try:
            found = self._ray.get(self.owes)
        except self._ray.exceptions.RayTaskError as error:  # ours, not of the work, whose exceptions are answers
            return News("raised", error.cause or error)
        except self._ray.exceptions.RayError as error:
            return News("died", _why(error))
        answer, computes_with = found if isinstance(found, tuple) else (found, None)
        kind, content = pickle.loads(answer)  # of our own worker
        return News(kind, computes_with if kind == "ready" else content)

    def end(self) -> None:
        """See `Worker`."""
        self._ray.kill(self._actor)


def _why(error: Exception) -> str:
    """The first line of what Ray says, with its word for how the worker ended (NODE_OUT_OF_MEMORY), which comes many lines later."""
    text = str(error).strip() or type(error).__name__
    how = re.search(r"Worker exit type: (\w+)", text)
    return " ".join(text.splitlines()[0].split())[:200] + (f" {how[1]}" if how else "")


class _RayCrew:
    """See `Crew`."""

    def __init__(self, ray: Any, size: int) -> None:
        self._ray, self.size, self.workers = ray, size, list[_Handle]()
        # An accelerator of the cluster is shared by all: each gets its fraction. Where the driver has none, nobody needs one.
        mine = versions()
        gpus = ray.cluster_resources().get("GPU", 0) if mine["device"] != "cpu" else 0
        fraction = math.floor(min(1.0, gpus / size) * 10_000) / 10_000
        self._kind, self._mine = ray.remote(num_cpus=1, num_gpus=fraction)(Actor), mine

    def hire(self) -> _Handle:
        """See `Crew`."""
        self.workers.append(_Handle(self._ray, self._kind.remote()))
        return self.workers[-1]

    def news(self, of: Sequence[_Handle], seconds: float) -> list[tuple[_Handle, News]]:
        """See `Crew`."""
        owed = {worker.owes: worker for worker in of}
        finished, _ = self._ray.wait(list(owed), num_returns=1, timeout=seconds)
        return [(owed[answer], owed[answer].news()) for answer in finished]

    def accept(self, ready: Mapping[str, str]) -> None:
        """See `Crew`."""
        require_equal(self._mine, ready, "a worker of the Ray cluster")


class _Kept:
    """The crew of this process, kept from one piece of work to the next."""

    crew: _RayCrew | None = None
    session: str = ""


def _crew_of(ray: Any, size: int) -> _RayCrew:
    """The crew that is there, where it is of this size and on this cluster."""
    crew, session = _Kept.crew, str(ray.get_runtime_context().get_job_id())
    if crew is None or (crew.size, _Kept.session) != (size, session):
        for worker in crew.workers if crew and _Kept.session == session else ():
            worker.end()
        crew, _Kept.session = _RayCrew(ray, size), session
        _Kept.crew = crew
    return crew


def _connected() -> Any:
    """Ray, connected. Raises UserError, in one line, where the cluster does not answer."""
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
