"""Large results while they are made: tensors whose values lie in a file, so that they need no memory of the process.

The system writes them to disk as it likes, and reads what is asked for. The file has no name: it ends with the last tensor that uses
it, however the process ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from windtunnel.core.chunks import sample_parts
from windtunnel.core.errors import InfrastructureError

CACHE = Path(".cache/windtunnel")
LARGE = 2**26  # bytes: what is smaller lies in memory

_NUMPY = {
    torch.float32: np.float32,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}


def empty(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of `shape` whose values are not set; in a file where it is large. Raises InfrastructureError for a full disk."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size < LARGE or dtype not in _NUMPY:
        return torch.empty(tuple(shape), dtype=dtype)
    try:
        # Beside the run where there is one: the system's folder for temporary files may itself be memory.
        with tempfile.TemporaryFile(dir=CACHE if CACHE.is_dir() else None) as file:
            return map_file(file, dtype, shape, mode="w+")
    except OSError as error:
        raise InfrastructureError(
            f"{size / 1e9:.1f} GB of temporary space are needed for a tensor ({error.strerror or error}); "
            f"free some, or assess fewer samples (data.samples.n)"
        ) from error


def map_file(
    file: IO[bytes] | str, dtype: torch.dtype, shape: Sequence[int], *, mode: Literal["c", "w+"], offset: int = 0
) -> Tensor:
    """Map values of a temporary file of ours as a tensor; `c`: copy on write, `w+`: make them. offset: in bytes."""
    return torch.from_numpy(np.memmap(file, _NUMPY[dtype], mode, offset, tuple(shape)))


def filled(shape: Sequence[int], value: float) -> Tensor:
    """Return a float32 tensor, made as `empty` does, with `value` everywhere."""
    return empty(shape).fill_(value)


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that may be written to."""
    return empty(tensor.shape, tensor.dtype).copy_(tensor)


def samples_at(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return a copy of the samples at `indices` (int64) of `tensor` (N, ...)."""
    selected = empty((len(indices), *tensor.shape[1:]), tensor.dtype)
    for part in sample_parts(selected):
        selected[part] = tensor[indices[part]]
    return selected
