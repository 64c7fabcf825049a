"""Units of work over a Ray cluster (Moritz et al. 2018, OSDI): actors that hold the model and the samples, which are sent once.

`RAY_ADDRESS` names the cluster; without it Ray is started on this machine. Workers return tensors, so no file system is shared.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
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

    def __init__(self, box: list[Any]) -> None:
        import ray

        parcel: Parcel = ray.get(box[0])  # in a box Ray leaves a reference alone, and does not warn of restarts
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
        # An actor that dies is made anew by Ray, here or on another node, and its unit is done again.
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=KILLS)(Worker)
        actors = [kind.remote([parcel]) for _ in range(workers)]
        try:
            mine = versions()
            for theirs in ray.get([actor.versions.remote() for actor in actors]):
                require_equal(mine, theirs, "a worker of the Ray cluster")
            yield from self._each(ray, actors, todo, name)
        finally:
            for actor in actors:
                ray.kill(actor)

    def _each(self, ray: Any, actors: list[Any], todo: deque[tuple[int, Any]], name: str) -> Iterator[dict[str, Any]]:
        idle, following = deque(actors), 0
        running: dict[Any, tuple[int, Any]] = {}
        ready: dict[int, bytes] = {}
        while todo or running or ready:
            while todo and idle and todo[0][0] - following < AHEAD * len(actors):
                place, unit = todo.popleft()
                actor = idle.popleft()
                running[actor.done.remote(unit)] = (place, actor)
            if following in ready:
                yield pickle.loads(ready.pop(following))
                following += 1
                continue
            (finished, *_), _ = ray.wait(list(running), num_returns=1)
            place, actor = running.pop(finished)
            try:
                ready[place] = ray.get(finished)
            except ray.exceptions.RayTaskError as error:  # what the work raised, as the work raised it
                raise error.cause from error
            except ray.exceptions.RayError as error:
                raise UserError(
                    f"{name}: its batch {place} was in hand {KILLS + 1} times when a worker of the Ray cluster died "
                    f"({str(error).splitlines()[0]}). What is finished is kept: run it again"
                ) from error
            idle.append(actor)


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
