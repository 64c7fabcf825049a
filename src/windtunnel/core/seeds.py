"""Seeds: every unit of work has its own, and global streams are left as they were found."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(run_seed: int, *names: str | int) -> int:
    """A seed in [0, 2**32) that depends on the run's seed and on the names of the unit of work, and on nothing else."""
    text = "\x1f".join([str(run_seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global streams of random, numpy and torch (all devices), and restore them on leaving.

    For calls of libraries that draw from a global stream. Our own code takes a `torch.Generator` instead.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries use the old stream
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
