"""Call a corruption of the user's or of a plug-in on one image, and check that it returns an image."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from windtunnel.boundary.arrays import array_of
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import seeded

R = TypeVar("R")


def checked_corruption(
    corrupt: Callable[[R], object], request: R, image: np.ndarray, seed: int, what: str
) -> np.ndarray:
    """Return `corrupt(request)` as an image like `image`.

    Global random streams are seeded with `seed` during the call, and restored.

    Args:
        corrupt: what is called; it runs inside `boundary.limits.bounded` of the caller's.
        request: its argument, which holds `image`.
        image: uint8 (H, W, C), the image before; it may be changed in place, and is nobody else's.
        seed: in [0, 2**32).
        what: corruption and severity, for the message.

    Raises:
        UserError: in one line, for anything but an array uint8 (H, W, C) of the shape of `image`.

    """
    shape = image.shape
    with seeded(seed):
        returned = corrupt(request)
    if returned is None:
        raise UserError(f"{what} returned None; it has to return the image, also where it changes it in place")
    array = array_of(returned, f"{what}: the image returned")
    if array.dtype != np.uint8:
        bad = "NaN or infinity in " if array.dtype.kind == "f" and not np.isfinite(array).all() else ""
        raise UserError(f"{what} returned {bad}{array.dtype}; uint8 with values 0 to 255 is needed")
    if array.shape != shape:
        sizes = ["x".join(map(str, size)) for size in (array.shape, shape)]
        raise UserError(
            f"{what} returned an image of shape {sizes[0]}; it was given {sizes[1]} (height, width, channels)"
        )
    return array
