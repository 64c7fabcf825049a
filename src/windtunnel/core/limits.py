"""A bound's time and memory, kept while it is computed: what exceeds them is stopped, and the machine goes on."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.core.errors import OutOfTimeError
from windtunnel.core.machine import system_text

if TYPE_CHECKING:
    from torch import device as Device

_AGAIN = 1.0  # seconds after which the interruption is repeated: an `except:` of somebody else's may have swallowed it
_STATM = Path("/proc/self/statm")


@contextmanager
def time_limit(deadline: float) -> Iterator[None]:
    """Raise OutOfTimeError in this thread, between two operations, once time.monotonic() passes `deadline`.

    Other people's code is in the block, which asks nobody for the time. Signals would reach the main thread alone.
    """
    if deadline == float("inf"):
        yield
        return
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise OutOfTimeError
    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()

    def interrupt() -> None:
        wait = remaining
        while not over.wait(wait):
            with lock:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(OutOfTimeError))
            wait = _AGAIN

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()
        # Sent and not delivered yet, it would strike whoever comes next.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


@contextmanager
def memory_limit(size: int, device: Device | None = None) -> Iterator[None]:
    """Let the process take at most `size` bytes more on the CPU: an allocation beyond fails, where Linux would kill.

    An accelerator's allocator fails by itself, and systems other than Linux count otherwise.
    """
    if (device is not None and device.type != "cpu") or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data() + size
    allowed = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data() -> int:
    """Bytes of private writable memory, which RLIMIT_DATA counts."""
    import resource

    return int(system_text(_STATM).split()[5]) * resource.getpagesize()
