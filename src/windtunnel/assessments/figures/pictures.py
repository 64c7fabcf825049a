"""Pictures of samples in rows and columns: what a figure lays out from images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from windtunnel.assessments.figures.png import png_of

SIDE = 96  # pixels of one picture, at least


@dataclass(frozen=True, slots=True)
class Picture:
    """One small picture of a sample: a PNG, what it shows, and what stands below it."""

    png: bytes
    alt: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class PictureGrid:
    """Pictures in rows and columns; None is an empty cell. An empty `header` is none. `small`: to stand beside text."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Picture | None, ...]], ...]
    small: bool = False


def picture(image: Tensor, alt: str, text: str = "") -> Picture:
    """A (C, H, W) image in [0, 1] as a picture."""
    return Picture(png_of(image, SIDE), alt, text)
