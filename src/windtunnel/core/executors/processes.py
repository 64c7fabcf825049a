"""Units of work over processes of this machine. A worker that dies loses the unit in hand, which another does."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from windtunnel.core.endings import deaf_children, no_main_module
from windtunnel.core.errors import UserError
from windtunnel.core.executors import AHEAD, KILLS
from windtunnel.core.executors.shipping import Parcel, StaysHereError, packed
from windtunnel.core.narration import say

U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Processes:
    """`workers` processes, each with the model and the samples."""

    workers: int

    def results(self, work: Callable[[U], dict[str, Any]], units: Iterable[U], name: str) -> Iterator[dict[str, Any]]:
        """See `Executor`."""
        todo = deque(units)
        if not todo:
            return
        try:
            parcel = packed(work)
        except StaysHereError as error:
            say(f"{name}: is done in one process: {error}")
            yield from map(work, todo)
            return
        lost: Counter[int] = Counter()
        done = 0
        while todo:
            with self._pool(parcel) as pool:
                waiting: deque[tuple[U, Future[bytes]]] = deque()
                try:
                    while todo or waiting:
                        while todo and len(waiting) < AHEAD * self.workers:
                            with no_main_module(), deaf_children():  # a process may be started for it
                                waiting.append((todo[0], pool.submit(_done, todo[0])))
                            todo.popleft()
                        found = waiting[0][1].result()
                        waiting.popleft()
                        done += 1
                        yield pickle.loads(found)  # of our own worker
                except BrokenProcessPool as error:
                    # Any of those in hand may have been the one; all that are not back are done again.
                    for place in range(done, done + min(len(waiting), self.workers)):
                        lost[place] += 1
                        if lost[place] >= KILLS:
                            raise UserError(
                                f"{name}: its batch {place} was in hand {KILLS} times when a process died: killed, perhaps for want "
                                f"of memory. What is finished is kept: run it again, with fewer workers or a smaller batch_size"
                            ) from error
                    todo.extendleft(unit for unit, _ in reversed(waiting))

    def _pool(self, parcel: Parcel) -> ProcessPoolExecutor:
        # spawn: forking a process that runs torch threads can hang.
        return ProcessPoolExecutor(
            self.workers, mp_context=mp.get_context("spawn"), initializer=_begin, initargs=(parcel,)
        )


class _Worker:
    """In a worker: its work."""

    work: Callable[[Any], Any]


def _begin(parcel: Parcel) -> None:
    parent = mp.parent_process()
    assert parent is not None
    # A driver that was killed closes nothing that its workers wait on.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _Worker.work = staticmethod(parcel.open())


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _done(unit: object) -> bytes:
    # As bytes: tensors in a queue travel through shared memory, of which a container has little.
    return pickle.dumps(_Worker.work(unit))
