"""Read the headers of array files without their values."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from windtunnel.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_MOST_AXES = 4  # samples, channels, rows, columns


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether by columns, type) of an array of numpy's; `file` stands behind the header then. Raises ValueError."""
    from numpy.lib import format as npy

    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype] = read(file)
    return header


def idx_header(file: IO[bytes], path: Path) -> tuple[int, ...]:
    """The shape of an idx file of unsigned bytes; `file` stands behind the header then. Raises UserError for another file.

    Source: LeCun's description of the MNIST format.
    """
    start = file.read(4)
    if len(start) < 4 or start[:3] != b"\x00\x00\x08":
        raise UserError(f"{path}: not an idx file of unsigned bytes (it should begin with 00 00 08)")
    if start[3] > _MOST_AXES:
        raise UserError(f"{path}: not an idx file of images or labels (its header says it has {start[3]} axes)")
    header = file.read(4 * start[3])
    if len(header) < 4 * start[3]:
        raise UserError(f"{path}: ends inside its header")
    return struct.unpack(f">{start[3]}I", header)


def without_x(names: Iterable[str]) -> str:
    """Return what is wrong with an .npz of arrays of these names, in words that follow the file's."""
    return f"has no array 'x' (it has {', '.join(names) or 'none'}); x is (N, C, H, W), y is (N,)"
