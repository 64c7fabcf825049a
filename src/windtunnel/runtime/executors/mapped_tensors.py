"""Send tensors that lie in a mapped file by their location: another process of this machine maps the same file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

MIN_BYTES = 2**20  # smaller tensors are sent as values
_MAPS = Path("/proc/self/maps")


def mapped_location(tensor: Tensor) -> tuple[str, int] | None:
    """Return (file, offset in bytes) of the values of `tensor`; None where they are in no file that others can open."""
    size = tensor.numel() * tensor.element_size()
    if size < MIN_BYTES or not tensor.is_contiguous() or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # not Linux
        return None
    address = tensor.data_ptr()
    for line in lines:
        span, _, offset, _, inode, *path = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            try:  # a file without a name has one here that is nobody's, or another's
                is_there = bool(path) and os.stat(path[0]).st_ino == int(inode)
            except OSError:
                is_there = False
            return (path[0], int(offset, 16) + address - low) if is_there and address + size <= high else None
    return None


def mapped(file: str, offset: int, kind: dtype, shape: tuple[int, ...]) -> Tensor:
    """Map the tensor at this location, copy on write."""
    import numpy as np
    import torch

    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return torch.from_numpy(np.memmap(file, np.uint8, "c", offset, (size,))).view(kind).view(shape)
