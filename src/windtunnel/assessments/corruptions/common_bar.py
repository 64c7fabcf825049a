"""Ten corruptions unlike those of ImageNet-C, in the spirit of ImageNet-C-bar, implemented anew from its descriptions.

Sizes are shares of the image's side, so that a severity means the same at every resolution. Fields that are added to the image
have mean 0 and the standard deviation of ImageNet-C's gaussian_noise at the same severity: that is their calibration.
Source: Mintun, Kirillov, Xie 2021, "On Interaction Between Augmentations and Corruptions in Natural Corruption Robustness".
"""

from collections.abc import Callable, Sequence

import numpy as np

from windtunnel.assessments.corruptions.camera import Change, interpolate

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
