"""Run units of work in processes of this machine.

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

from windtunnel.runtime.executors.dispatcher import Dispatcher, WorkerEvent
from windtunnel.runtime.executors.interface import Lost, SerialExecutor
from windtunnel.runtime.executors.payload import Payload, WorkerServer, pack_or_warn, unpickled
from windtunnel.runtime.shutdown import deaf_children, no_main_module

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ProcessExecutor:
    """Executor with `workers` processes, each with its own copy of the model and the samples."""

    workers: int

    def results(
        self, work: Callable[[U], R], units: Sequence[U], name: str, limit: Callable[[U], float] | None = None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield results as `Executor.results` does."""
        if not units:
            return
        payload = pack_or_warn(work, name, for_this_machine=True)
        if payload is None:
            yield from SerialExecutor().results(work, units, name)
            return
        yield from Dispatcher(_pool_of(self.workers), payload, units, name, limit).results()


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

    def load(self, payload: Payload) -> None:
        """Send the work from a thread: a pipe's buffer is small, and the worker reads only after its start."""
        request = ("open", (os.getcwd(), payload))  # relative paths in the work mean the same
        threading.Thread(target=self._send, args=(request,), daemon=True).start()

    def submit(self, unit: object) -> None:
        """Send a unit."""
        self._send(("do", unit))

    def _send(self, request: object) -> None:
        # As plain bytes: `send` would put tensors into shared memory, which their worker then waits for.
        content = pickle.dumps(request)
        # It has died, and its connection says so; or it was ended while `load` was still sending: a connection that is closed
        # in the middle of that has no handle any more (TypeError).
        with suppress(OSError, TypeError):
            self.connection.send_bytes(content)

    def read_event(self) -> WorkerEvent:
        """Read the next message, or report how the process died."""
        try:
            return WorkerEvent(*unpickled(self.connection.recv_bytes()))
        except (EOFError, OSError):
            self._process.join()
            return WorkerEvent("died", _how(self._process.exitcode))

    def end(self) -> None:
        """Kill the process and close its connection."""
        self._process.kill()
        self._process.join()
        self.connection.close()


class _ProcessPool:
    """Worker processes of this machine."""

    def __init__(self, size: int) -> None:
        self.size, self.workers = size, list[_Process]()

    def spawn(self) -> _Process:
        """Start one more process."""
        self.workers.append(_Process())
        return self.workers[-1]

    def wait_events(self, workers: Sequence[_Process], seconds: float) -> list[tuple[_Process, WorkerEvent]]:
        """Return the events of `workers`, after waiting at most `seconds` for one."""
        by_connection = {worker.connection: worker for worker in workers}
        return [
            (by_connection[c], by_connection[c].read_event())
            for c in wait(list(by_connection), seconds)
            if isinstance(c, Connection)
        ]

    def check_worker(self, ready: Mapping[str, str]) -> None:
        """Accept every worker: nothing can differ on one machine."""


class _SharedPool:
    """The pool of this process, reused for the next piece of work."""

    pool: _ProcessPool | None = None


def _pool_of(size: int) -> _ProcessPool:
    """Return the shared pool, replaced by a new one where its size differs."""
    pool = _SharedPool.pool
    if pool is None or pool.size != size:
        end_workers()
        pool = _SharedPool.pool = _ProcessPool(size)
    return pool


def end_workers() -> None:
    """Kill the idle worker processes of this process."""
    pool, _SharedPool.pool = _SharedPool.pool, None
    for worker in pool.workers if pool else ():
        worker.end()


# Before multiprocessing asks them by SIGTERM and waits: a solver takes that signal as a request to stop solving, and stays.
atexit.register(end_workers)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, perhaps for want of memory" if -code == signal.SIGKILL else name


def _serve(connection: Connection) -> None:
    """In the worker: answer requests until the connection closes."""
    parent = mp.parent_process()
    assert parent is not None
    # A driver that was killed closes nothing that its workers wait on while they work.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    server = WorkerServer()
    while True:
        try:
            kind, content = unpickled(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if kind == "open":
            folder, payload = content
            os.chdir(folder)
            answer = server.load(payload)
        else:
            answer = server.do(content)
        connection.send_bytes(answer)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
