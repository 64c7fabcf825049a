"""Work that calls code of the user's, watched by a process of ours: it cannot hang, nor end unseen.

The user's model may sleep for ever in C, call `os._exit(0)` or crash the interpreter. Only another process sees that.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from windtunnel.core.errors import USER_ERROR, InfrastructureError, UserError
from windtunnel.runtime import watchdog
from windtunnel.runtime.shutdown import as_user_error, deaf_children

P = ParamSpec("P")
R = TypeVar("R")
_GRACE = 5.0  # seconds that a process may take to end after its last word


class _Watcher:
    """In a watched process: the way to the process that watches it."""

    connection: Connection | None = None


def run_watched(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in a process of its own and return what it returns. Its UserError is raised here; so is one for any other end.

    What it prints appears as if it were called. Raises UserError too where a call inside `limited` takes too long.
    """
    # fork starts at once; where it is not safe (macOS, Windows), a new interpreter imports everything again.
    context: mp.context.DefaultContext = mp.get_context("fork" if sys.platform == "linux" else "spawn")  # type: ignore[assignment]  # typeshed: a choice of literals
    ours, theirs = context.Pipe()
    process = context.Process(target=_watched, args=(theirs, ours, work, args, kwargs))
    sys.stdout.flush()
    with deaf_children():
        process.start()
    theirs.close()
    try:
        result: R = _listen(ours, process)
        return result
    finally:
        process.kill()
        process.join()


@contextmanager
def limited(what: str, seconds: float, key: str) -> Iterator[None]:
    """Run a call of the user's code that may take `seconds` where it is watched; `key` of params.yaml raises the limit.

    A stage, which nobody watches, gives it ten times as long (`runtime.watchdog`).
    """
    begin(what, seconds, key)
    try:
        yield
    finally:
        end()


def begin(what: str, seconds: float, key: str) -> None:
    """Begin what `limited` limits, for a call that `end` ends elsewhere."""
    watcher = _Watcher.connection
    if watcher is None:
        watchdog.begin(what, seconds, key)
    else:
        watcher.send(("begin", f"{what} has not answered in {seconds:g} s; {key} gives it more", seconds))


def end() -> None:
    """Note that the call that began last is over."""
    watcher = _Watcher.connection
    if watcher is None:
        watchdog.end()
    else:
        watcher.send(("end",))


def is_watched() -> bool:
    """Return True in a process that `run_watched` started, which is ended by the one that watches it."""
    return _Watcher.connection is not None


def _listen(connection: Connection, process: mp.process.BaseProcess) -> Any:
    """Wait until the process returns, ends without a result, or one of its calls exceeds its limit."""
    waiting: list[tuple[str, float]] = []  # of calls inside calls, the limit of the innermost counts
    while True:
        remaining = max(0.0, waiting[-1][1] - time.monotonic()) if waiting else None
        if not connection.poll(remaining):
            raise UserError(waiting[-1][0])
        try:
            word, *details = connection.recv()
        except EOFError:
            break
        if word == "begin":
            waiting.append((details[0], time.monotonic() + details[1]))
        elif word == "end":
            waiting.pop()
        elif word == "refused":
            raise (InfrastructureError if details[1] else UserError)(details[0])
        else:
            process.join(_GRACE)
            return details[0]
    process.join(_GRACE)
    code = process.exitcode
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    raise UserError(f"code of yours ended the process {how} before anything was known; nothing was checked")


def _watched(
    connection: Connection,
    theirs: Connection,
    work: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """In the process of its own."""
    theirs.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(lambda: os._exit(USER_ERROR))
    _Watcher.connection = connection
    try:
        returned = work(*args, **kwargs)
        sys.stdout.flush()
        connection.send(("done", returned))
    except SystemExit as error:
        connection.send(("refused", f"code of yours called sys.exit({error.code!r}); nothing was checked", False))
    except Exception as error:
        user_error = as_user_error(error)
        if user_error is None:
            raise
        connection.send(("refused", str(user_error), isinstance(user_error, InfrastructureError)))


def end_with_parent(end: Callable[[], None]) -> None:
    """Call `end` in a thread once the process that started this one by multiprocessing has died: nobody waits for it."""
    parent = mp.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True).start()
