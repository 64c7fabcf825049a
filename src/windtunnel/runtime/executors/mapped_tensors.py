"""Tensors of a file that is mapped into memory: a process of this machine maps it too, and is not sent a copy of its values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

WORTH = 2**20  # bytes: what is smaller is sooner sent
_MAPS = Path("/proc/self/maps")


def place_of(tensor: Tensor) -> tuple[str, int] | None:
    """(file, offset in bytes) where the values of `tensor` lie; None for what is in no file that others could open."""
    size = tensor.numel() * tensor.element_size()
    if size < WORTH or not tensor.is_contiguous() or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # not Linux
        return None
    address = tensor.data_ptr()
    for line in lines:
        span, _, offset, _, inode, *named = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            try:  # a file without a name has one here that is nobody's, or another's
                is_there = bool(named) and os.stat(named[0]).st_ino == int(inode)
            except OSError:
                is_there = False
            return (named[0], int(offset, 16) + address - low) if is_there and address + size <= high else None
    return None


def mapped(file: str, offset: int, kind: dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor that lies there; what is written to it is this process's own."""
    import numpy as np
    import torch

    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return torch.from_numpy(np.memmap(file, np.uint8, "c", offset, (size,))).view(kind).view(shape)
