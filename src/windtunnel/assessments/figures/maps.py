"""Difference of two images as a picture: red brighter, blue darker, white not at all."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from windtunnel.assessments.figures.png import enlarged, png_bytes

WORDS = "red brighter, blue darker"


def signed_map(difference: Tensor, how: str = "signed_dominant") -> Tensor:
    """One map (H, W) of a change (C, H, W): the channel that moved most with its sign, or a mean or maximum."""
    if how == "signed_dominant":
        return difference.gather(0, difference.abs().argmax(0, keepdim=True))[0]
    if how == "mean":
        return difference.mean(0)
    return difference.abs().mean(0) if how == "mean_abs" else difference.abs().amax(0)


def map_png(values: Tensor, scale: float, side: int, cmap: str = "RdBu_r") -> bytes:
    """A map (H, W) as PNG; `scale` is the change of full colour, in either direction."""
    from matplotlib import colormaps

    shares = (values / (2 * scale) + 0.5).clamp(0, 1).numpy()
    return png_bytes(enlarged((colormaps[cmap](shares)[..., :3] * 255).round().astype(np.uint8), side))
