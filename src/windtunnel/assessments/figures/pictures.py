"""Pictures of samples in rows and columns: what a figure lays out from images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from windtunnel.assessments.figures.png import png_of

_FEW_ROWS = 3
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


def sheets(
    caption: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[Picture | None]]], across: int = 8
) -> list[PictureGrid]:
    """A grid of any width as grids of `across` columns at most, the last with the caption of all."""
    width = max(len(pictures) for _, pictures in rows)
    starts = range(0, width, across)
    return [
        PictureGrid(
            caption if start == starts[-1] else "",
            tuple(header[start : start + across]),
            tuple((label, tuple(pictures[start : start + across])) for label, pictures in rows),
            small=len(rows) > _FEW_ROWS,
        )
        for start in starts
    ]
