"""Large tensors: computed a few samples at a time, and with values in a file while they are made.

Such a tensor needs no memory of the process: the system writes it to disk as it likes, and reads what is asked for. The file has no
name: it ends with the last tensor that uses it, however the process ends.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from windtunnel.core.errors import InfrastructureError

CACHE = Path(".cache/windtunnel")
LARGE = 2**26  # bytes: what is smaller lies in memory
AT_A_TIME = 2**22  # values of a part: 16 MiB of float32

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


def sample_parts(tensor: Tensor, values: int = AT_A_TIME) -> Iterator[slice]:
    """Return the samples of `tensor` (N, ...) in order, in parts of at most `values` values; one that has more is a part of its own."""
    few = max(1, values // max(1, tensor[:1].numel()))
    return (slice(start, start + few) for start in range(0, len(tensor), few))


def by_samples(measure: Callable[..., Tensor], *tensors: Tensor, values: int = AT_A_TIME) -> Tensor:
    """Apply `measure` to `tensors` (N, ...) a few samples at a time and join the results (n, ...), each of one sample alone."""
    first = tensors[0]
    parts = [measure(*(t[part] for t in tensors)) for part in sample_parts(first, values)]
    return torch.cat(parts) if parts else measure(*tensors)


def of_shape_for(n: int, value: object) -> object:
    """Return a tensor of one sample (1, ...) as one of the shape, type and device that it has for `n`, in no more memory; else `value`."""
    return value.expand(n, *value.shape[1:]) if isinstance(value, Tensor) and value.shape[:1] == (1,) else value


def put_samples(into: Tensor, at: Tensor, source: Tensor, indices: Tensor) -> None:
    """`into[at] = source[indices]`, both int64 (n,), without a copy of all n samples."""
    few = max(1, AT_A_TIME // max(1, source[:1].numel()))
    for targets, others in zip(at.split(few), indices.split(few), strict=True):
        into[targets] = source[others]


def finite_samples(tensor: Tensor) -> Tensor:
    """Return bool (N,): the samples of `tensor` (N, ...) whose values are all finite."""
    return by_samples(lambda part: part.flatten(1).isfinite().all(1), tensor)


def same_values(first: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have one shape and equal values, as `torch.equal`, a part at a time."""
    return first.shape == other.shape and all(torch.equal(first[part], other[part]) for part in sample_parts(first))
