"""Memory that is freed serves the next batch, in a worker and in the process that does all itself."""

import ctypes
from contextlib import suppress

# What a process keeps of the memory that it has freed (bytes), and the largest block that comes from there: of glibc's parameters
# (malloc.h) the numbers, and of the second the most that it takes. By default a process that never freed anything large before gives
# the memory of each batch back and asks for it again: measured, EvoBA on LeNet5 took 1.6 times the processor time, in page faults.
_MALLOC = {-1: 256 * 2**20, -3: 32 * 2**20}


def keep_freed_memory() -> None:
    """Tell the C library's allocator (mallopt(3)); one that is not glibc's does as it likes."""
    with suppress(AttributeError):
        for parameter, size in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, size)
