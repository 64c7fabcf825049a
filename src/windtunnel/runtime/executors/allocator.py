"""Let the C library keep freed memory for the next batch."""

import ctypes
from contextlib import suppress

# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (malloc.h), bytes; the second at its maximum. With the defaults the memory of each
# batch is returned to the system and requested again: EvoBA on LeNet5 took 1.6 times the processor time, in page faults.
_MALLOC = {-1: 256 * 2**20, -3: 32 * 2**20}


def retain_freed_memory() -> None:
    """Set both thresholds with mallopt(3), where the C library is glibc."""
    with suppress(AttributeError):
        for parameter, size in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, size)
