"""Seeds: every unit of work has its own, and global streams are left as they were found."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(run_seed: int, *names: str | int) -> int:
    """Return a seed in [0, 2**32) that depends on the run's seed and on the names of the unit of work, and on nothing else."""
    text = "\x1f".join([str(run_seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global streams of random, numpy and torch (all devices), and restore them on leaving.

    For calls of libraries that draw from a global stream. Our own code takes a `torch.Generator` instead.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries use the old stream
    with _torch_streams_restored():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def _torch_streams_restored() -> Iterator[None]:
    """Restore the streams of the CPU and of every device of the accelerator, whichever it is, on leaving."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = accelerator.type if accelerator else "cpu"
    if kind == "mps":  # one device, whose functions take no index
        state = torch.mps.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            try:
                yield
            finally:
                torch.mps.set_rng_state(state)
    elif kind == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=range(torch.accelerator.device_count()), device_type=kind):
            yield
