"""The corruptions that windtunnel implements: five changes of a camera, and ten unlike those of ImageNet-C.

Changes of a camera: pixel centres are the coordinates, the origin is in the middle of the image, interpolation is bilinear,
what is outside is zero; a positive angle turns counter-clockwise, a translation is (right, up); brightness adds, contrast
multiplies, both clamped to [0, 1]. The severity sets the size of a change, the seed its sign or direction.

The ten are in the spirit of ImageNet-C-bar, implemented anew from its descriptions. Sizes are shares of the image's side, so that
a severity means the same at every resolution. Fields that are added to the image have mean 0 and the standard deviation of
ImageNet-C's gaussian_noise at the same severity: that is their calibration.
Source: Mintun, Kirillov, Xie 2021, "On Interaction Between Augmentations and Corruptions in Natural Corruption Robustness".
"""

from collections.abc import Callable, Sequence

import numpy as np

from windtunnel.assessments.corruptions.rows import CorruptionRequest

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
_GAUSSIAN_NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviations of ImageNet-C, severities 1 to 5
Field = Callable[[tuple[int, int], np.random.Generator], np.ndarray]


def _added(field: Field, *, grey: bool = False) -> Change:
    """Return the corruption that adds a field, one per channel or one for all, scaled to the strength."""

    def change(image: np.ndarray, strength: float, generator: np.random.Generator) -> np.ndarray:
        height, width, channels = image.shape
        planes = [_standardised(field((height, width), generator)) for _ in range(1 if grey else channels)]
        return image + strength * np.stack(planes, axis=-1)

    return change


def _standardised(field: np.ndarray) -> np.ndarray:
    centred: np.ndarray = field - field.mean()
    return centred / max(float(centred.std()), 1e-12)


def _coloured(exponent: float) -> Field:
    """Return noise whose amplitude goes with frequency ** exponent."""

    def field(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
        frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
        frequency[0, 0] = 1.0  # the mean is taken away anyway
        spectrum = np.fft.rfft2(generator.standard_normal(shape)) * frequency**exponent
        return np.fft.irfft2(spectrum, shape)

    return field


def _lattice(shape: tuple[int, int], cells: int) -> tuple[np.ndarray, ...]:
    """Return cell row and column (int) and the smoothed place inside the cell, of every pixel of a square lattice."""
    side = max(shape) / cells
    rows, columns = np.mgrid[: shape[0], : shape[1]] / side
    inside_row, inside_column = rows % 1, columns % 1
    return rows.astype(int), columns.astype(int), inside_row, inside_column


def _fade(t: np.ndarray) -> np.ndarray:
    faded: np.ndarray = t * t * t * (t * (t * 6 - 15) + 10)
    return faded


def _blend(corners: Sequence[np.ndarray], v: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Blend the values at the four corners (top left, top right, bottom left, bottom right) of each pixel's cell."""
    u, v = _fade(u), _fade(v)
    blended: np.ndarray = (corners[0] * (1 - u) + corners[1] * u) * (1 - v) + (
        corners[2] * (1 - u) + corners[3] * u
    ) * v
    return blended


def _value_noise(shape: tuple[int, int], cells: int, generator: np.random.Generator) -> np.ndarray:
    """Random values on a lattice, interpolated."""
    values = generator.standard_normal((cells + 2, cells + 2))
    i, j, v, u = _lattice(shape, cells)
    return _blend([values[i + a, j + b] for a in (0, 1) for b in (0, 1)], v, u)


def _perlin(shape: tuple[int, int], generator: np.random.Generator, cells: int = 8) -> np.ndarray:
    """Gradient noise of one scale. Source: Perlin 2002, "Improving noise"."""
    angles = generator.uniform(0, 2 * np.pi, (cells + 2, cells + 2))
    i, j, v, u = _lattice(shape, cells)
    corners = [
        np.cos(angles[i + a, j + b]) * (u - b) + np.sin(angles[i + a, j + b]) * (v - a) for a in (0, 1) for b in (0, 1)
    ]
    return _blend(corners, v, u)


def _plasma(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Sum octaves of value noise, each of half the amplitude and half the size of the one before."""
    octaves = max(1, int(np.log2(max(shape))) - 1)
    waves = [_value_noise(shape, 2**k, generator) / 2**k for k in range(1, octaves + 1)]
    total: np.ndarray = np.sum(waves, axis=0)
    return total


def _plane_wave(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """One frequency, 3 to 12 periods a side, in a random direction."""
    rows, columns = np.mgrid[: shape[0], : shape[1]] / max(shape)
    direction, periods, phase = generator.uniform(0, np.pi), generator.uniform(3, 12), generator.uniform(0, 2 * np.pi)
    wave: np.ndarray = np.sin(2 * np.pi * periods * (columns * np.cos(direction) + rows * np.sin(direction)) + phase)
    return wave


def _rings(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Sine waves around a random centre, 5 to 15 periods a side."""
    rows, columns = np.mgrid[: shape[0], : shape[1]] / max(shape)
    centre, periods, phase = generator.uniform(0, 1, 2), generator.uniform(5, 15), generator.uniform(0, 2 * np.pi)
    wave: np.ndarray = np.sin(2 * np.pi * periods * np.hypot(rows - centre[0], columns - centre[1]) + phase)
    return wave


def _caustic(image: np.ndarray, strength: float, generator: np.random.Generator) -> np.ndarray:
    """Look through rippled water: its slope displaces, its curvature gathers light or scatters it.

    strength: standard deviation of the displacement, as a share of the side; that of the light is four times as much.
    """
    height, width = image.shape[:2]
    surface = _perlin((height, width), generator, cells=6)
    slope_row, slope_column = np.gradient(surface)
    curvature = _standardised(np.gradient(slope_row)[0] + np.gradient(slope_column)[1])
    scale = strength * max(height, width) / max(float(np.hypot(slope_row, slope_column).std()), 1e-12)
    rows, columns = np.mgrid[:height, :width]
    moved = interpolate(image, rows + scale * slope_row, columns + scale * slope_column, mode="nearest")
    return moved * (1 - 4 * strength * curvature[..., None])


def _checkerboard(image: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Grey out a share of the cells of a checkerboard, 8 cells a side, shifted at random."""
    height, width = image.shape[:2]
    side = max(1, round(max(height, width) / 8))
    offset = generator.integers(0, side, 2)
    rows, columns = np.mgrid[:height, :width]
    i, j = (rows + offset[0]) // side, (columns + offset[1]) // side
    number = i * (int(j.max()) + 1) + j
    cells = generator.permutation(int(number.max()) + 1)[: max(1, round(share * (number.max() + 1)))]
    return np.where(np.isin(number, cells)[..., None], 0.5, image)


def _sparks(image: np.ndarray, density: float, generator: np.random.Generator) -> np.ndarray:
    """Brightness (H, W, 1) in [0, 1] of stars with rays: `density` of them per image, each with a radius of 3 to 10 % of the side."""
    height, width = image.shape[:2]
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    light = np.zeros((height, width))
    for _ in range(round(density)):
        row, column = (
            generator.uniform(0, height / max(height, width)),
            generator.uniform(0, width / max(height, width)),
        )
        radius, rays, turn = generator.uniform(0.03, 0.1), generator.integers(4, 9), generator.uniform(0, 2 * np.pi)
        distance, angle = np.hypot(rows - row, columns - column), np.arctan2(rows - row, columns - column)
        star = np.exp(-distance / radius) * (0.6 + 0.4 * np.cos(rays * angle + turn))
        light = np.maximum(light, star)
    return light[..., None]


def _sparkles(image: np.ndarray, density: float, generator: np.random.Generator) -> np.ndarray:
    brighter: np.ndarray = image + (1 - image) * _sparks(image, density, generator)
    return brighter


def _inverse_sparkles(image: np.ndarray, density: float, generator: np.random.Generator) -> np.ndarray:
    darker: np.ndarray = image * (1 - _sparks(image, density, generator))
    return darker


_STARS = (3, 6, 12, 20, 32)
COMMON_BAR: dict[str, tuple[Change, Sequence[float]]] = {
    "blue_noise": (_added(_coloured(0.5)), _GAUSSIAN_NOISE),
    "brownish_noise": (_added(_coloured(-1.0)), _GAUSSIAN_NOISE),
    "perlin_noise": (_added(_perlin), _GAUSSIAN_NOISE),
    "plasma_noise": (_added(_plasma), _GAUSSIAN_NOISE),
    "single_frequency": (_added(_plane_wave, grey=True), _GAUSSIAN_NOISE),
    "concentric_waves": (_added(_rings), _GAUSSIAN_NOISE),
    "caustic_refraction": (_caustic, (0.005, 0.01, 0.015, 0.022, 0.03)),  # share of the side
    "checkerboard": (_checkerboard, (0.1, 0.2, 0.3, 0.4, 0.5)),  # share of the cells
    "sparkles": (_sparkles, _STARS),
    "inverse_sparkles": (_inverse_sparkles, _STARS),
}
_FUNCTIONS = {**CAMERA, **COMMON_BAR}


def corrupt(request: CorruptionRequest) -> np.ndarray:
    """Corrupt an image; its pixels depend on the image, the severity and the seed alone."""
    function, strengths = _FUNCTIONS[request.corruption]
    changed = function(request.image / 255.0, strengths[request.severity - 1], np.random.default_rng(request.seed))
    pixels: np.ndarray = np.round(changed.clip(0, 1) * 255).astype(np.uint8)
    return pixels
