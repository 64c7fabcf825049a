"""The interface of executors, and the one that computes in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Lost:
    """Sentinel result of a unit that was given up; `reason` says why."""

    reason: str
    hung: bool = False


class Executor(Protocol):
    """Computes units of work."""

    def results(
        self, work: Callable[[U], R], units: Sequence[U], name: str, limit: Callable[[U], float] | None = None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield (index in `units`, result of `work`), each as soon as it is finished.

        name: of the assessment, for messages. limit: seconds that a unit may take before its worker is ended and it is given
        up; without it `batch_limit()`, and a second try. Neither holds in this process, which nobody could end.
        Raises what `work` raises.
        """


class _Inside:
    """State of this process: `unit` is True while it computes one; nested work then runs serially, without progress."""

    unit = False


@contextmanager
def inside_a_unit() -> Iterator[None]:
    """Mark the block as the computation of a unit."""
    before, _Inside.unit = _Inside.unit, True
    try:
        yield
    finally:
        _Inside.unit = before


def is_inside_a_unit() -> bool:
    """Return True while this process computes a unit."""
    return _Inside.unit


class SerialExecutor:
    """Computes one unit after the other in this process."""

    def results(
        self, work: Callable[[U], R], units: Sequence[U], name: str, limit: Callable[[U], float] | None = None
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """Yield results as `Executor.results` does."""
        retain_freed_memory()
        for index, unit in enumerate(units):
            with inside_a_unit():
                result = work(unit)
            yield index, result


# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (malloc.h), bytes; the second at its maximum. With the defaults the memory of each
# batch is returned to the system and requested again: EvoBA on LeNet5 took 1.6 times the processor time, in page faults.
_MALLOC = {-1: 256 * 2**20, -3: 32 * 2**20}


def retain_freed_memory() -> None:
    """Set both thresholds with mallopt(3), where the C library is glibc."""
    with suppress(AttributeError):
        for parameter, size in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, size)
