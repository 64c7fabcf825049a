"""Five changes of a camera: rotation, translation, brightness, contrast, blur.

Conventions: pixel centres are the coordinates, the origin is in the middle of the image, interpolation is bilinear, what is
outside is zero; a positive angle turns counter-clockwise, a translation is (right, up); brightness adds, contrast multiplies,
both clamped to [0, 1]. The severity sets the size of a change, the seed its sign or direction.
"""

from collections.abc import Callable, Sequence

import numpy as np

# (image float64 (H, W, C) in [0, 1], strength, generator) -> image, which is clipped to [0, 1] afterwards.
Change = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def interpolate(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, *, mode: str = "grid-constant") -> np.ndarray:
    """Return image (H, W, C) at rows and columns (H, W), bilinearly; outside is zero, or follows scipy's `mode`."""
    from scipy.ndimage import map_coordinates

    planes = [map_coordinates(plane, (rows, columns), order=1, mode=mode) for plane in np.moveaxis(image, -1, 0)]
    return np.stack(planes, axis=-1)


def centred_grid(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (x to the right, y upwards) of each pixel's centre from the middle of the image, in pixels, (H, W) each."""
    height, width = image.shape[:2]
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    return columns - (width - 1) / 2, (height - 1) / 2 - rows


def _affine(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return interpolate(image, (height - 1) / 2 - y, x + (width - 1) / 2)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Turn an image (H, W, C) counter-clockwise around its middle."""
    (x, y), angle = centred_grid(image), np.deg2rad(degrees)
    # A pixel of the result shows the point that the inverse rotation takes it to.
    return _affine(image, x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle))


def translate(image: np.ndarray, right: float, up: float) -> np.ndarray:
    """Shift an image (H, W, C) by (right, up) pixels."""
    x, y = centred_grid(image)
    return _affine(image, x - right, y - up)


def _sign(generator: np.random.Generator) -> float:
    return float(generator.choice((-1.0, 1.0)))


def _rotation(image: np.ndarray, degrees: float, generator: np.random.Generator) -> np.ndarray:
    return rotate(image, degrees * _sign(generator))


def _translation(image: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    direction, pixels = generator.uniform(0, 2 * np.pi), share * min(image.shape[:2])
    return translate(image, pixels * np.cos(direction), pixels * np.sin(direction))


def _brightness(image: np.ndarray, change: float, generator: np.random.Generator) -> np.ndarray:
    shifted: np.ndarray = image + change * _sign(generator)
    return shifted


def _contrast(image: np.ndarray, change: float, generator: np.random.Generator) -> np.ndarray:
    scaled: np.ndarray = image * (1 + change * _sign(generator))
    return scaled


def _blur(image: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    blurred: np.ndarray = gaussian_filter(image, share * min(image.shape[:2]), axes=(0, 1), mode="reflect")
    return blurred


CAMERA: dict[str, tuple[Change, Sequence[float]]] = {
    "rotation": (_rotation, (3, 6, 10, 15, 20)),  # degrees
    "translation": (_translation, (0.02, 0.04, 0.06, 0.08, 0.1)),  # share of the shorter side
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_contrast, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "blur": (_blur, (0.0125, 0.018, 0.022, 0.027, 0.035)),  # standard deviation as a share of the shorter side
}
