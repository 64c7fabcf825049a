"""Images (C, H, W) in [0, 1] as PNG files, for pages that hold their own pictures."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor


def png_of(image: Tensor, side: int) -> bytes:
    """A (C, H, W) image in [0, 1] as PNG, enlarged by whole pixels to `side` at most where it is small."""
    return png_bytes(enlarged(pixels_of(image[None])[0], side))


def pixels_of(images: Tensor) -> NDArray[np.uint8]:
    """(N, C, H, W) in [0, 1] as (N, H, W, 3) for colour, else the first channel as (N, H, W)."""
    bytes_ = (images.clamp(0, 1) * 255).round().byte().numpy()
    return bytes_.transpose(0, 2, 3, 1) if bytes_.shape[1] == 3 else bytes_[:, 0]


def enlarged(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """(H, W) or (H, W, 3) with every pixel repeated, so that the longer side comes to at most `side`; large ones as they are."""
    factor = max(1, side // max(pixels.shape[:2]))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W) or (H, W, 3) as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG as the address of a picture in a page that needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
