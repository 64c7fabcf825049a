"""Batch sizes that suit the caches, and limits on memory."""

import torch
from torch import nn

from windtunnel.core import machine

_SHARE = 0.5  # of the free memory: allocators fragment, and other processes grow
_ACTIVATIONS = 100_000  # of all samples of a batch together
_ON_ACCELERATOR = 4  # times as many there, which computes a small batch as long as a large one


def samples_that_suit(module: nn.Module, sample: torch.Tensor) -> int:
    """Return how many samples are quickest together: few where a sample's activations are many.

    More do not suit the caches, and auto-LiRPA bounds each unit for all samples of a batch that may switch in one of them.
    Measured with CROWN (benchmarks/bound_batches.py): 4 to 20 for convolutional networks of 12,000 to 23,000 activations.
    """
    counts = [sample.numel()]
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
    room = _ACTIVATIONS * (_ON_ACCELERATOR if counts_its_own(sample.device) else 1)
    return max(1, room // sum(counts))


def memory_to_use(device: torch.device) -> int:
    """Bytes that one computation may take: half of what is free."""
    return int(_SHARE * free_memory(device))


def counts_its_own(device: torch.device) -> bool:
    """Return whether a device has memory of its own (cuda, xpu); the CPU and mps work in the machine's."""
    return device.type not in {"cpu", "mps"}


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on `device`: of the accelerator, or of the machine and the container."""
    if counts_its_own(device):
        free: int = torch.get_device_module(device).mem_get_info(device)[0]
        return free
    return machine.free_memory()
