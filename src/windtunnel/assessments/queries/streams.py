"""One random stream per image, so that an image's result does not depend on which others run beside it.

SplitMix64 counts: draw number k of a stream is a hash of (its seed, k), so the draws of many streams, each at its own
place, are one array operation. Source: Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bits = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def stream_seeds(run_seed: int, name: str, ids: Sequence[str]) -> Tensor:
    """A 64-bit seed per sample, int64 (n,), from (run seed, assessment name, sample id) and nothing else."""
    digests = [hashlib.sha256("\x1f".join((str(run_seed), name, sample)).encode()).digest()[:8] for sample in ids]
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").copy())


def uniforms(seeds: Tensor, start: Tensor, count: int) -> Tensor:
    """Draws `start` to `start + count` of each stream, float64 (n, count) in [0, 1); seeds, start: int64 (n,)."""
    first, seed = (tensor.numpy().view(np.uint64)[:, None] for tensor in (start, seeds))
    counter: Bits = np.arange(1, count + 1, dtype=np.uint64) + first
    bits: Bits = counter * _GOLDEN + seed
    for shift_bits, factor in _MIX:
        bits = (bits ^ (bits >> shift_bits)) * factor
    bits = bits ^ (bits >> np.uint64(31))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def below(draws: Tensor, n: Tensor | int) -> Tensor:
    """Uniform integers in [0, n) from uniform draws; int64, shaped as `draws`."""
    return (draws * n).long()


def pixel_values(draws: Tensor, levels: int | None) -> Tensor:
    """Uniform pixel values in [0, 1], float32: any, or one of `levels` equally spaced ones (256: what 8 bits hold)."""
    return (draws if levels is None else below(draws, levels).double() / (levels - 1)).float()
