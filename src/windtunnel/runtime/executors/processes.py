"""Units of work over processes of this machine.

The worker processes import this module: it must not import torch, which takes longer than many a piece of work.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

from windtunnel.runtime.console import warn
from windtunnel.runtime.executors import Here, Lost
from windtunnel.runtime.executors.dispatcher import News, Shift
from windtunnel.runtime.executors.payload import Desk, Parcel, StaysHereError, packed
from windtunnel.runtime.shutdown import deaf_children, no_main_module

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Processes:
    """`workers` processes, each with the model and the samples."""

    workers: int

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
        try:
            parcel = packed(work, for_this_machine=True)
        except StaysHereError as error:
            warn(f"{name}: is done in one process: {error}")
            yield from Here().results(work, units, name)
            return
        yield from Shift(_crew_of(self.workers), parcel, units, name, limit).results()


class _Process:
    """A worker in a process of its own."""

    def __init__(self) -> None:
        # spawn: forking a process that runs torch threads can hang.
        context = mp.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with no_main_module(), deaf_children():
            self._process.start()
        theirs.close()

    def open(self, parcel: Parcel) -> None:
        """In a thread: a pipe holds little, and its reader is not there before it has started."""
        asked = ("open", (os.getcwd(), parcel))  # relative paths in the work mean the same
        threading.Thread(target=self._send, args=(asked,), daemon=True).start()

    def give(self, unit: object) -> None:
        """See `Worker`."""
        self._send(("do", unit))

    def _send(self, asked: object) -> None:
        # As plain bytes: `send` would put tensors into shared memory, which their worker then waits for.
        content = pickle.dumps(asked)
        # It has died, and its connection says so; or it was ended while `open` was still sending: a connection that is closed
        # in the middle of that has no handle any more (TypeError).
        with suppress(OSError, TypeError):
            self.connection.send_bytes(content)

    def news(self) -> News:
        """What it said, or how it died."""
        try:
            return News(*pickle.loads(self.connection.recv_bytes()))  # of our own worker
        except (EOFError, OSError):
            self._process.join()
            return News("died", _how(self._process.exitcode))

    def end(self) -> None:
        """See `Worker`."""
        self._process.kill()
        self._process.join()
        self.connection.close()


class _ProcessCrew:
    """See `Crew`."""

    def __init__(self, size: int) -> None:
        self.size, self.workers = size, list[_Process]()

    def hire(self) -> _Process:
        """See `Crew`."""
        self.workers.append(_Process())
        return self.workers[-1]

    def news(self, of: Sequence[_Process], seconds: float) -> list[tuple[_Process, News]]:
        """See `Crew`."""
        talking = {worker.connection: worker for worker in of}
        return [(talking[c], talking[c].news()) for c in wait(list(talking), seconds) if isinstance(c, Connection)]

    def accept(self, ready: Mapping[str, str]) -> None:
        """Nothing can differ on one machine."""


class _Kept:
    """The crew of this process, kept from one piece of work to the next."""

    crew: _ProcessCrew | None = None


def _crew_of(size: int) -> _ProcessCrew:
    """The crew that is there, where it is of this size."""
    crew = _Kept.crew
    if crew is None or crew.size != size:
        end_workers()
        crew = _Kept.crew = _ProcessCrew(size)
    return crew


def end_workers() -> None:
    """End the processes that wait for more work; they end with this one too."""
    crew, _Kept.crew = _Kept.crew, None
    for worker in crew.workers if crew else ():
        worker.end()


# Before multiprocessing asks them by SIGTERM and waits: a solver takes that signal as a request to stop solving, and stays.
atexit.register(end_workers)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    named = signal.Signals(-code).name
    return f"{named}, perhaps for want of memory" if -code == signal.SIGKILL else named


def _serve(connection: Connection) -> None:
    """In the worker: answer until nobody asks."""
    parent = mp.parent_process()
    assert parent is not None
    # A driver that was killed closes nothing that its workers wait on while they work.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    desk = Desk()
    while True:
        try:
            word, content = pickle.loads(connection.recv_bytes())  # of our own driver
        except (EOFError, OSError):
            return
        if word == "open":
            folder, parcel = content
            os.chdir(folder)
            answer = desk.open(parcel)
        else:
            answer = desk.do(content)
        connection.send_bytes(answer)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
