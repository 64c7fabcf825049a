"""Decode picture files that a run has made."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError


def is_picture(path: Path) -> bool:
    """Return True for a whole picture file."""
    try:
        with Image.open(path) as image:
            image.verify()
    except (OSError, SyntaxError, UnidentifiedImageError):  # Pillow raises SyntaxError for a broken PNG
        return False
    return True


def picture_pixels(png: bytes) -> np.ndarray:
    """Return the pixels, uint8 (H, W, 3)."""
    with Image.open(io.BytesIO(png)) as opened:
        return np.asarray(opened.convert("RGB"))
