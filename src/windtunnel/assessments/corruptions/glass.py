"""glass_blur with the bytes of imagecorruptions 1.1.2, without its loop over numpy scalars (one second an image at 224 px)."""

from __future__ import annotations

import numpy as np

# sigma of the blur, largest displacement in pixels, rounds of displacement; by severity.
_STRENGTH = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))


def glass_blur(image: np.ndarray, severity: int) -> np.ndarray:
    """Blur, displace pixels locally, blur; uint8 RGB (H, W, 3) in and out.

    Draws from numpy's global stream in the library's order. The library means to swap two pixels, but its operands are
    views, so that the second assignment reads what the first wrote: a pixel is overwritten by its neighbour, and
    published results are of that. Only where each pixel comes from is followed here, one integer a pixel.
    """
    sigma, reach, rounds = _STRENGTH[severity - 1]
    height, width, _ = image.shape
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    # One draw of many pairs takes the same numbers from the stream as many draws of one pair.
    steps = np.random.randint(-reach, reach, size=(rounds, len(rows), len(columns), 2))  # noqa: NPY002
    at = rows[:, None] * width + columns
    neighbours = at + steps[..., 1] * width + steps[..., 0]
    comes_from = list(range(height * width))
    for pixels in neighbours:
        # In order: a displaced pixel is displaced again with its neighbour.
        for target_pixel, source_pixel in zip(at.ravel().tolist(), pixels.ravel().tolist(), strict=True):
            comes_from[target_pixel] = comes_from[source_pixel]
    displaced = _blurred(image, sigma).astype(np.uint8).reshape(-1, 3)[comes_from].reshape(image.shape)
    return _blurred(displaced, sigma).clip(0, 255).astype(np.uint8)


def _blurred(image: np.ndarray, sigma: float) -> np.ndarray:
    from skimage.filters import gaussian

    blurred: np.ndarray = gaussian(image / 255.0, sigma=sigma, channel_axis=-1) * 255
    return blurred
