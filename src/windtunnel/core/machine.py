"""Processors and memory that this process may use, and limits on the time and the memory of a computation."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from windtunnel.core.errors import OutOfTimeError

if TYPE_CHECKING:
    from torch import device as Device

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**62
_AGAIN = 1.0  # seconds after which the interruption is repeated: an `except:` of somebody else's may have swallowed it


def usable_processors() -> int:
    """Return how many processors this process may use, by its affinity and the limit of its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, _read("cpu.max").split())
    except (OSError, ValueError):  # no container, another version of cgroups, or no limit (`max`)
        return count
    return max(1, min(count, quota // period))


def whole_memory() -> int:
    """Return the bytes of the machine or, where it has fewer, of the container."""
    return min(int(psutil.virtual_memory().total), _memory_limit())


def free_memory() -> int:
    """Return the bytes that may be allocated: of the machine, and of the container if it has a limit.

    The page cache does not count as used memory in a container: the kernel drops it on demand. Mapped
    data and results fill that cache: counted, they would leave no room after a few gigabytes.
    """
    available, limit = int(psutil.virtual_memory().available), _memory_limit()
    try:
        used = int(_read("memory.current"))
        kinds = dict(line.split(maxsplit=1) for line in _read("memory.stat").splitlines())
    except (OSError, ValueError):  # as above
        return available
    cached = sum(int(kinds.get(kind, 0)) for kind in ("active_file", "inactive_file"))
    return min(available, limit - used + cached)


def _memory_limit() -> int:
    try:
        return int(_read("memory.max"))
    except (OSError, ValueError):  # as above
        return _NO_LIMIT


def system_text(path: Path) -> str:
    """Read a file of /proc or /sys. Raises OSError where the system has none."""
    return path.read_text(encoding="ascii", errors="replace")


def _read(name: str) -> str:
    return system_text(_CGROUP / name).strip()


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

    try:
        threading.Thread(target=interrupt, daemon=True).start()
        yield
    finally:
        for _ in range(2):  # what was sent just now is raised in the first round, not in whoever comes next
            try:
                with lock:
                    over.set()
            except OutOfTimeError:
                pass


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
    limit = psutil.Process().memory_info().data + size  # private writable memory, which RLIMIT_DATA counts
    allowed = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
