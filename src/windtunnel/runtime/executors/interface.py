"""Units of work as executors and the work inside them see them: one that was given up, and the process that computes one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lost:
    """Sentinel result of a unit that was given up; `reason` says why."""

    reason: str
    hung: bool = False


_is_inside = False  # of this process: nested work runs serially, without progress


@contextmanager
def inside_a_unit() -> Iterator[None]:
    """Mark the block as the computation of a unit."""
    global _is_inside
    before, _is_inside = _is_inside, True
    try:
        yield
    finally:
        _is_inside = before


def is_inside_a_unit() -> bool:
    """Return True while this process computes a unit."""
    return _is_inside


# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (malloc.h), bytes; the second at its maximum. With the defaults the memory of each
# batch is returned to the system and requested again: EvoBA on LeNet5 took 1.6 times the processor time, in page faults.
_MALLOC = {-1: 256 * 2**20, -3: 32 * 2**20}


def retain_freed_memory() -> None:
    """Set both thresholds with mallopt(3), where the C library is glibc."""
    with suppress(AttributeError):
        for parameter, size in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, size)
