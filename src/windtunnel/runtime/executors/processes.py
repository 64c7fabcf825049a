"""Run units of work in processes of this machine.

The worker processes import this module: it must not import torch, which takes longer than many a piece of work.
"""

import atexit
import multiprocessing as mp
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from windtunnel.runtime.executors.dispatcher import Dispatcher, WorkerEvent, WorkerPool
from windtunnel.runtime.executors.payload import Payload, WorkerServer, unpickled
from windtunnel.runtime.shutdown import deaf_children, no_main_module
from windtunnel.runtime.supervised import end_with_parent


def spread_over_processes(
    payload: Payload, units: Sequence[Any], name: str, limit: Callable[[Any], float] | None, workers: int
) -> Iterator[tuple[int, Any]]:
    """Yield results as `Executor.results` does, from `workers` processes, each with its own copy of model and samples."""
    if workers not in _pools:
        end_workers()
        # Nothing can differ on one machine.
        _pools[workers] = WorkerPool(workers, _Process, wait, check_worker=lambda _: None)
    yield from Dispatcher(_pools[workers], payload, units, name, limit).results()


class _Process:
    """A worker in a process of its own."""

    def __init__(self) -> None:
        # spawn: forking a process that runs torch threads can hang.
        context = mp.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with no_main_module(), deaf_children():
            self._process.start()
        theirs.close()

    def load(self, payload: Payload) -> None:
        # From a thread: a pipe's buffer is small, and the worker reads only after its start.
        request = ("open", (os.getcwd(), payload))  # relative paths in the work mean the same
        threading.Thread(target=self._send, args=(request,), daemon=True).start()

    def submit(self, unit: object) -> None:
        self._send(("do", unit))

    def _send(self, request: object) -> None:
        # As plain bytes: `send` would put tensors into shared memory, which their worker then waits for.
        content = pickle.dumps(request)
        # It has died, and its connection says so; or it was ended while `load` was still sending: a connection that is closed
        # in the middle of that has no handle any more (TypeError).
        with suppress(OSError, TypeError):
            self.channel.send_bytes(content)

    def read_event(self) -> WorkerEvent:
        try:
            return WorkerEvent(*unpickled(self.channel.recv_bytes()))
        except (EOFError, OSError):
            self._process.join()
            return WorkerEvent("died", _how(self._process.exitcode))

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.channel.close()


_pools: dict[int, WorkerPool] = {}  # of this process: at most one, by its size


def end_workers() -> None:
    """Kill the idle worker processes of this process."""
    while _pools:
        _pools.popitem()[1].end()


# Before multiprocessing asks them by SIGTERM and waits: a solver takes that signal as a request to stop solving, and stays.
atexit.register(end_workers)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, perhaps for want of memory" if -code == signal.SIGKILL else name


def _serve(connection: Connection) -> None:
    """In the worker: answer requests until the connection closes."""
    # A driver that was killed closes nothing that its workers wait on while they work.
    end_with_parent(lambda: os._exit(1))
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
