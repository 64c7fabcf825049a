"""Compute on large tensors a few samples at a time, to bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

AT_A_TIME = 2**22  # values of a part: 16 MiB of float32


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
