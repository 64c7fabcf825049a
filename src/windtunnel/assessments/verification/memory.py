"""How many samples fit into memory at once, found by measuring one of them."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import psutil
import torch
from torch import nn

_SHARE = 0.5  # of the free memory: allocators fragment, and other processes grow
_ACTIVATIONS, _FEWEST = 200_000, 20  # of all samples of a batch together; the fewest samples worth a batch
_CGROUP = Path("/sys/fs/cgroup")


class PeakMemory:
    """Measures by how many `bytes` the memory in use grew, at its peak, while the block ran."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self._device = device
        self._done = threading.Event()
        self._before = 0
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        if counts_its_own(self._device):
            device = torch.get_device_module(self._device)
            device.reset_peak_memory_stats(self._device)
            self._before = device.memory_allocated(self._device)
        else:
            self._before = _resident()
            self._sampler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if counts_its_own(self._device):
            self.bytes = torch.get_device_module(self._device).max_memory_allocated(self._device) - self._before
        else:
            self._done.set()
            self._sampler.join()

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self.bytes = max(self.bytes, _resident() - self._before)


def samples_that_suit(module: nn.Module, sample: torch.Tensor) -> int:
    """How many samples are quickest together: few where a sample's activations are many, for the sake of the caches.

    Measured on 2 cores with CROWN: 20 for a convolutional network of 11,000 activations, hundreds for a small MLP.
    """
    counts: list[int] = []
    handles = [
        part.register_forward_hook(
            lambda _, __, output: counts.append(output.numel() if torch.is_tensor(output) else 0)
        )
        for part in module.modules()
        if not next(part.children(), None)
    ]
    try:
        with torch.no_grad():
            module(sample)
    finally:
        for handle in handles:
            handle.remove()
    return max(_FEWEST, _ACTIVATIONS // sum(counts)) if any(counts) else _FEWEST


def samples_that_fit(bytes_per_sample: int, device: torch.device) -> int:
    """How many samples of this size half of the free memory holds; at least 1."""
    return max(1, memory_to_use(device) // max(1, bytes_per_sample))


def memory_to_use(device: torch.device) -> int:
    """Bytes that one computation may take: half of what is free."""
    return int(_SHARE * free_memory(device))


def counts_its_own(device: torch.device) -> bool:
    """Whether a device has memory of its own (cuda, xpu); the CPU and mps work in the machine's."""
    return device.type not in {"cpu", "mps"}


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on `device`: of the accelerator, or of the machine and the container."""
    if counts_its_own(device):
        free: int = torch.get_device_module(device).mem_get_info(device)[0]
        return free
    return min(int(psutil.virtual_memory().available), _left_in_container())


def _left_in_container() -> int:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return int(limit) - int(used)
    except (OSError, ValueError):  # no container, another version of cgroups, or no limit (`max`)
        return 2**62


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory is short; on the CPU torch raises a plain RuntimeError for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in ("allocate memory", "bad_alloc")
    )
