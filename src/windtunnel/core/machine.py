"""Processors and memory that this process may use: those of the machine, within the limits of its container."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**62


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
