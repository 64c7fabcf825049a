"""Grids of sample pictures for figures.

Every picture of a sample is made here, so that `report.pictures` (shown, blurred, none) holds for all of them.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from windtunnel.boundary.params_file import configured_pictures

_FEW_ROWS = 3
SIDE = 96  # pixels of one picture, at least
NO_PICTURES = "Pictures of samples are left out (report.pictures: none)."
_MODES = ("shown", "blurred", "none")
_FIELDS, _PIXELS_PER_FIELD = 4, 4  # a side of a blurred picture: fields at most, and pixels of a field at least
_mode: ContextVar[str] = ContextVar("pictures", default="shown")


def picture_mode() -> str:
    """Return the strictest of `report.pictures` of params.yaml here and of `pictures_as`; `none` for an unknown word."""
    return _strictest((_mode.get(), configured_pictures()))


@contextmanager
def pictures_as(modes: Iterable[str]) -> Iterator[None]:
    """Make pictures as the strictest of `modes` allows, in this thread."""
    token = _mode.set(_strictest((_mode.get(), *modes)))
    try:
        yield
    finally:
        _mode.reset(token)


def _strictest(modes: Iterable[str]) -> str:
    return max((mode if mode in _MODES else "none" for mode in modes), key=_MODES.index)


def allowed(images: Tensor, blank: float = 0.5) -> Tensor:
    """Return (N, C, H, W) as it may be shown: unchanged, averaged over large fields, or `blank` throughout."""
    mode = picture_mode()
    if mode == "shown":
        return images
    if mode == "none":
        return images.new_full(images.shape, blank)
    height, width = images.shape[-2:]
    fields = [max(1, min(_FIELDS, side // _PIXELS_PER_FIELD)) for side in (height, width)]
    return interpolate(adaptive_avg_pool2d(images, (fields[0], fields[1])), (height, width), mode="nearest")


@dataclass(frozen=True, slots=True)
class Picture:
    """One small picture of a sample: a PNG, its description, and its caption."""

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
    """Return a (C, H, W) image in [0, 1] as a picture."""
    return Picture(png_of(image, SIDE), alt, text)


def sheets(
    caption: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[Picture | None]]], across: int = 8
) -> list[PictureGrid]:
    """Return a grid of any width as grids of `across` columns at most, the last with the caption of all."""
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


WORDS = "red brighter, blue darker"


def signed_map(difference: Tensor, how: str = "signed_dominant") -> Tensor:
    """One map (H, W) of a change (C, H, W): the channel that moved most with its sign, or a mean or maximum."""
    if how == "signed_dominant":
        return difference.gather(0, difference.abs().argmax(0, keepdim=True))[0]
    if how == "mean":
        return difference.mean(0)
    return difference.abs().mean(0) if how == "mean_abs" else difference.abs().amax(0)


def map_png(values: Tensor, scale: float, side: int, cmap: str = "RdBu_r") -> bytes:
    """Return a map (H, W) as PNG; `scale` is the change of full colour, in either direction."""
    from matplotlib import colormaps

    values = allowed(values[None, None], 0.0)[0, 0]
    shares = (values / (2 * scale) + 0.5).clamp(0, 1).numpy()
    return png_bytes(enlarged((colormaps[cmap](shares)[..., :3] * 255).round().astype(np.uint8), side))


def png_of(image: Tensor, side: int) -> bytes:
    """Return a (C, H, W) image in [0, 1] as PNG, enlarged by whole pixels to `side` at most where it is small."""
    return png_bytes(enlarged(pixels_of(image[None])[0], side))


def pixels_of(images: Tensor) -> NDArray[np.uint8]:
    """(N, C, H, W) in [0, 1] as (N, H, W, 3) for colour, else the first channel as (N, H, W)."""
    bytes_ = (allowed(images).clamp(0, 1) * 255).round().byte().numpy()
    return bytes_.transpose(0, 2, 3, 1) if bytes_.shape[1] == 3 else bytes_[:, 0]


def enlarged(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """(H, W) or (H, W, 3) with every pixel repeated, so that the longer side is at most `side`; large images are unchanged."""
    factor = max(1, side // max(pixels.shape[:2]))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def tile_of(images: Tensor, side: int) -> tuple[int, int]:
    """(width, height) of a picture on a sheet: at most `side` pixels, larger images averaged down."""
    height, width = images.shape[-2:]
    shrink = min(1.0, side / max(height, width))
    return max(1, round(width * shrink)), max(1, round(height * shrink))


def shrunk(images: Tensor, side: int) -> Tensor:
    """Return (N, C, H, W) in the size of `tile_of`."""
    size = tile_of(images, side)[::-1]
    return images if tuple(images.shape[-2:]) == size else interpolate(images, size, mode="area")


def sheet_png(tiles: NDArray[np.uint8], across: int) -> bytes:
    """Tiles (n, H, W[, 3]) as one PNG, `across` in a row, white where the last row has none."""
    n, height, width = tiles.shape[:3]
    rows = -(-n // across)
    sheet = np.full((rows * across, *tiles.shape[1:]), 255, np.uint8)
    sheet[:n] = tiles
    tail = tiles.shape[3:]
    laid = sheet.reshape(rows, across, height, width, *tail).swapaxes(1, 2)
    return png_bytes(laid.reshape(rows * height, across * width, *tail))


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W) or (H, W, 3) as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    """Return a PNG as the address of a picture in a page that needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
