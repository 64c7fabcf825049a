"""Randomness: every unit of work has its own seed, global streams are left as they were, accelerators repeat their bits."""

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from windtunnel.core.contracts import Algorithm, AssessmentKind, Caveat, Randomness

ONE_RANDOM_RUN, RANDOM_RUNS, OF_THE_RUN = "one_random_run", "random_runs", "reproducibility"
_CHANGES = {
    AssessmentKind.EMPIRICAL_ATTACK: "another seed may break other samples",
    AssessmentKind.FORMAL_VERIFICATION: "another seed may verify or break other samples",
    AssessmentKind.STATISTICAL_SAMPLING: "another seed draws other perturbations and changes the rates",
}


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
    mps_state = torch.mps.get_rng_state() if kind == "mps" else None  # one device, whose functions take no index
    devices = range(0 if kind in {"cpu", "mps"} else torch.accelerator.device_count())
    with torch.random.fork_rng(devices=devices, device_type=kind):
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


def make_deterministic(device: torch.device) -> None:
    """Hold CUDA to deterministic algorithms in full float32, in this process from here on; other devices have no such switches.

    Before its first work: cuBLAS reads its workspace once. An operation that has no deterministic form warns and is done all
    the same: a model of the user's may need it. Source: PyTorch's notes on reproducibility.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def random_runs(algorithm: Algorithm, draws: int = 1, caveats: Sequence[Caveat] = ()) -> tuple[Caveat, ...]:
    """Return the caveat of an assessment that draws at random in `draws` runs; none for a deterministic one.

    Args:
        algorithm: Its registry row, with the randomness of the parameters that it ran with.
        draws: How many runs its worst case is over.
        caveats: Existing caveats; none is added beside a caveat about the whole run.
    """
    if algorithm.randomness is Randomness.DETERMINISTIC or any(caveat.code == OF_THE_RUN for caveat in caveats):
        return ()
    text = f"{algorithm.name} is randomised; each batch is seeded from `seed`: {_CHANGES[algorithm.kind]}."
    if draws > 1:
        return (Caveat(RANDOM_RUNS, f"{text} The numbers are the worst case of {draws} runs."),)
    return (Caveat(ONE_RANDOM_RUN, text),)
