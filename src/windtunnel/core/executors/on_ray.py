"""Units of work over a Ray cluster (Moritz et al. 2018, OSDI): actors that hold the model and the samples, which are sent once.

`RAY_ADDRESS` names the cluster; without it Ray is started on this machine. Workers return tensors, so no file system is shared.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from windtunnel.core.errors import UserError
from windtunnel.core.executors import AHEAD, KILLS
from windtunnel.core.executors.shipping import Parcel, StaysHereError, packed, require_equal, versions
from windtunnel.core.narration import say

U = TypeVar("U")


class Worker:
    """An actor: the work, opened once."""

    def __init__(self, parcel: Parcel) -> None:
        self.work = parcel.open()

    def versions(self) -> dict[str, str]:
        """What it computes with."""
        return versions()

    def done(self, unit: object) -> bytes:
        """The result of a unit."""
        return pickle.dumps(self.work(unit))


@dataclass(frozen=True, slots=True)
class OnRay:
    """`workers` actors; as many as the cluster has processors where it is None."""

    workers: int | None

    def results(self, work: Callable[[U], dict[str, Any]], units: Iterable[U], name: str) -> Iterator[dict[str, Any]]:
        """See `Executor`."""
        todo = deque(enumerate(units))
        if not todo:
            return
        ray = _connected()
        workers = min(self.workers or max(1, int(ray.cluster_resources().get("CPU", 1))), len(todo))
        try:
            parcel = ray.put(packed(work))
        except StaysHereError as error:
            say(f"{name}: is done in one process: {error}")
            yield from (work(unit) for _, unit in todo)
            return
        kind = ray.remote(num_cpus=1)(Worker)
        crew = _Crew(ray, lambda: kind.remote(parcel), workers, name)
        try:
            mine = versions()
            for theirs in ray.get([actor.versions.remote() for actor in crew.actors]):
                require_equal(mine, theirs, "a worker of the Ray cluster")
            yield from crew.results(todo)
        finally:
            for actor in crew.actors:
                ray.kill(actor)


class _Crew:
    """Actors and what they have in hand. One that dies is replaced, and its unit is done again."""

    def __init__(self, ray: Any, hire: Callable[[], Any], workers: int, name: str) -> None:
        self._ray, self._hire, self._name = ray, hire, name
        self.actors = [hire() for _ in range(workers)]
        self._idle, self._lost = deque(self.actors), Counter[int]()
        self._running: dict[Any, tuple[int, Any, Any]] = {}

    def results(self, todo: deque[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
        """The result of each unit, in order; never more than `AHEAD` for each actor in memory."""
        ready: dict[int, bytes] = {}
        following = 0
        while todo or self._running or ready:
            while todo and self._idle and todo[0][0] - following < AHEAD * len(self.actors):
                place, unit = todo.popleft()
                actor = self._idle.popleft()
                self._running[actor.done.remote(unit)] = (place, unit, actor)
            if following in ready:
                yield pickle.loads(ready.pop(following))  # of our own worker
                following += 1
                continue
            (finished, *_), _ = self._ray.wait(list(self._running), num_returns=1)
            place, unit, actor = self._running.pop(finished)
            try:
                ready[place] = self._ray.get(finished)
                self._idle.append(actor)
            except self._ray.exceptions.RayTaskError as error:  # what the work raised, as the work raised it
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._replace(actor, place, error)
                todo.appendleft((place, unit))

    def _replace(self, actor: Any, place: int, error: Exception) -> None:
        """Raises UserError for a unit that was in hand too often when its actor died."""
        self._lost[place] += 1
        if self._lost[place] >= KILLS:
            raise UserError(
                f"{self._name}: its batch {place} was in hand {KILLS} times when a worker of the Ray cluster died "
                f"({str(error).splitlines()[0]}). What is finished is kept: run it again"
            ) from error
        self.actors.remove(actor)
        self.actors.append(self._hire())
        self._idle.append(self.actors[-1])


def _connected() -> Any:
    """Ray, connected. Raises UserError, in one line, where it is not installed or the cluster does not answer."""
    try:
        import ray
    except ImportError as error:
        raise UserError("executor: ray is not installed; pip install 'windtunnel[ray]'") from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False if not address else None,
            )
        except Exception as error:  # connection errors of many kinds
            raise UserError(f"RAY_ADDRESS: {address}: no Ray cluster answers there ({error})") from error
    return ray
