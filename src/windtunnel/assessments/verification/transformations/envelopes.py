"""Sound envelopes of the pixels of transformed images over boxes of parameters, affine in the parameters.

A pixel is a piecewise smooth function of the parameters. By the mean value theorem it stays within value at the middle + D (p - middle),
D an interval that holds its derivatives over the box; the middle of D gives the slope, its radius the error. Where the hull of the
values over the box is tighter, that is taken. Between whole pixels a translation is bilinear, so that a form with a symbol for the product
of its parameters is exact. In float64, widened by a margin. Setting: Balunovic et al. 2019 (DeepG).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.transformations.affine_forms import AffineForm
from windtunnel.core.transformations import REFLECT, Transformation
from windtunnel.core.transformed import (
    LEAST_POSITIVE,
    LEAST_SIGMA,
    LUMA,
    blur_weights,
    pixel_grid,
    pixels_at,
    source_of,
    transform,
)

MARGIN = 1e-7  # of pixel values: images are float32, and float64 rounds too
_CELLS = 3  # cells of the pixel grid that a point may cross in each direction; beyond, the bounds are those of the whole image


@dataclass(frozen=True, slots=True)
class TensorInterval:
    """Tensors low <= high of one shape."""

    low: Tensor
    high: Tensor

    def __add__(self, other: TensorInterval) -> TensorInterval:
        return TensorInterval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: TensorInterval) -> TensorInterval:
        return TensorInterval(self.low - other.high, self.high - other.low)

    def __neg__(self) -> TensorInterval:
        return TensorInterval(-self.high, -self.low)

    def __mul__(self, other: TensorInterval) -> TensorInterval:
        ends = (self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high)
        low, high = torch.minimum(ends[0], ends[1]), torch.maximum(ends[0], ends[1])
        return TensorInterval(low.minimum(ends[2]).minimum(ends[3]), high.maximum(ends[2]).maximum(ends[3]))

    def __truediv__(self, other: TensorInterval) -> TensorInterval:
        """Divide by an interval of positive numbers."""
        return self * TensorInterval(1 / other.high, 1 / other.low)


def envelope(transformation: Transformation, image: Tensor, low: Tensor, high: Tensor) -> AffineForm:
    """Enclose the transformed images of one sample over B boxes of parameters.

    Args:
        transformation: kinds of change other than squares.
        image: float64 (C, H, W).
        low: float64 (B, P), lower ends of the parameters in their units.
        high: float64 (B, P).

    Returns:
        A form (B, C, H, W) whose symbols are the P parameters, each from -1 at `low` to 1 at `high`; then, where pixels are
        moved by a translation alone, the product of its two.
    """
    names = list(transformation.names)
    middle, half = (low + high) / 2, (high - low) / 2
    if any(kind.geometric for kind in transformation.kinds):
        form = _geometric(transformation, image, middle, half)
    else:
        batch = image.expand(len(low), *image.shape)
        form = AffineForm(batch, batch.new_zeros(len(low), len(names), *image.shape), torch.zeros_like(batch))

    def of(name: str) -> tuple[int, Tensor, Tensor]:
        k = names.index(name)
        return k, middle[:, k], half[:, k]

    if "blur" in names:
        for size in image.shape[1:]:  # the rows, then the columns
            form = _blur(form, *of("blur"), size)
    if "saturation" in names:
        weights = form.centre.new_tensor(LUMA).expand(3, 3)
        grey = _mixed(form, weights)
        k, at, width = of("saturation")
        form = grey.plus(_mixed(form, torch.eye(3).to(weights) - weights).scaled(k, at, width, 0 * width)).clamped()
    if "hue" in names:
        form = _hue(form, *of("hue"))
    if "contrast" in names or "brightness" in names:
        if "contrast" in names:
            k, at, width = of("contrast")
            form = form.scaled(k, at, width, 0 * width)
        if "brightness" in names:
            k, at, width = of("brightness")
            slopes = form.slopes.clone()
            slopes[:, k] += width[:, None, None, None]
            form = AffineForm(form.centre + at[:, None, None, None], slopes, form.radius)
        form = form.clamped()
    if "gamma" in names:
        form = _gamma(form, *of("gamma"))
    return AffineForm(form.centre, form.slopes, form.radius + MARGIN)


def _blur(form: AffineForm, symbol: int, middle: Tensor, half: Tensor, size: int) -> AffineForm:
    """Return the form blurred along its rows, and turned, so that its columns are next."""
    kernel, slope, error = _kernels(middle, half, size)

    def mixed(weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("bij,b...jw->b...wi", weights, values)

    slopes, reach = mixed(kernel, form.slopes), form.reach
    slopes[:, symbol] += mixed(slope, form.centre)
    rest = mixed(slope.abs() + error, reach) + mixed(error, form.centre.abs())
    return AffineForm(mixed(kernel, form.centre), slopes, mixed(kernel, form.radius) + rest)


def _kernels(middle: Tensor, half: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(kernel, slope, error), (B, size, size): the weights of a blur are kernel + slope e, to within `error`.

    With u = 1 / (2 sigma^2) a weight w at distance d has dw/du = w (E - d^2), where E, the mean of the squares of the distances,
    falls with u: a weight is least at an end, and largest at an end or between, where E = d^2. So its derivative is enclosed; where
    the hull of the weights is tighter, that is taken.
    """
    low, high = middle - half, middle + half
    nearest = torch.maximum(low, -high)  # to 0, which lies between where it is negative
    ends = [t.clamp(min=LEAST_SIGMA)[:, None, None] for t in (nearest, torch.maximum(low.abs(), high.abs()))]
    line = torch.arange(size).to(middle)
    squares = (line[:, None] - line) ** 2
    first, last = (blur_weights(end, size) for end in ends)
    least_mean, largest_mean = ((weights * squares).sum(-1, keepdim=True) for weights in (first, last))
    rise = (largest_mean - squares).clamp(min=0) * (0.5 / ends[0] ** 2 - 0.5 / ends[1] ** 2)
    between = torch.where(squares >= largest_mean, last, (last * rise.exp()).clamp(max=1))
    weights = TensorInterval(torch.minimum(first, last), torch.where(squares <= least_mean, first, between))
    inverse = TensorInterval(ends[1] ** -3, ends[0] ** -3)
    derivative = weights * TensorInterval(squares - largest_mean, squares - least_mean) * inverse
    step = half[:, None, None]
    error = (derivative.high - derivative.low) / 2 * step
    is_box = ((weights.high - weights.low) / 2 <= error) | (nearest < LEAST_SIGMA)[:, None, None]
    slope = (derivative.low + derivative.high) / 2 * step * middle.sign()[:, None, None]
    centre = blur_weights(middle[:, None, None], size)
    return (
        torch.where(is_box, (weights.low + weights.high) / 2, centre),
        torch.where(is_box, 0.0, slope),
        torch.where(is_box, (weights.high - weights.low) / 2, error) + 1e-12,
    )


def _mixed(form: AffineForm, weights: Tensor) -> AffineForm:
    """Return the form of weights (3, 3) times the channels."""
    return form.linear(
        lambda t: torch.einsum("ij,bjhw->bihw", weights, t),
        lambda t: torch.einsum("ij,bjhw->bihw", weights.abs(), t),
        0.0,
    )


def _hue(form: AffineForm, symbol: int, middle: Tensor, half: Tensor) -> AffineForm:
    mean = torch.full((3, 3), 1 / 3).to(middle)
    eye = torch.eye(3).to(middle)
    turned = (eye.roll(1, 0) - eye.roll(-1, 0)) / 3**0.5  # as values.roll(1) - values.roll(-1)
    at, width = torch.deg2rad(middle), torch.deg2rad(half)
    error = width**2 / 2  # of the tangent, by Taylor
    across = _mixed(form, eye - mean).scaled(symbol, at.cos(), -at.sin() * width, error)
    around = _mixed(form, turned).scaled(symbol, at.sin(), at.cos() * width, error)
    return _mixed(form, mean).plus(across).plus(around).clamped()


def _gamma(form: AffineForm, symbol: int, middle: Tensor, half: Tensor) -> AffineForm:
    """x^gamma: affine in gamma where x is known, else the box of its values."""
    middle, half = middle[:, None, None, None], half[:, None, None, None]
    reach = form.reach
    low, high, x = (
        torch.where(value > 0, value.clamp(LEAST_POSITIVE, 1), 0.0)
        for value in (form.centre - reach, form.centre + reach, form.centre)
    )
    log = x.clamp(min=LEAST_POSITIVE).log()
    steepest, flattest = ((x ** (middle + side * half)) * log for side in (-1, 1))  # derivatives, which grow with gamma
    is_zero = x <= 0
    steepest, flattest = steepest.masked_fill(is_zero, 0), flattest.masked_fill(is_zero, 0)
    slopes = torch.zeros_like(form.slopes)
    slopes[:, symbol] = (steepest + flattest) / 2 * half
    value, error = (x**middle).masked_fill(is_zero, 0), (flattest - steepest) / 2 * half
    bottom, top = low ** (middle + half), high ** (middle - half)
    bottom, top = bottom.masked_fill(low <= 0, 0), top.masked_fill(high <= 0, 0)
    is_known = reach == 0
    slopes = torch.where(is_known[:, None], slopes, 0.0)
    return AffineForm(
        torch.where(is_known, value, (bottom + top) / 2), slopes, torch.where(is_known, error, (top - bottom) / 2)
    )


def _geometric(transformation: Transformation, image: Tensor, middle: Tensor, half: Tensor) -> AffineForm:
    only, geometric = _moving(transformation)
    if only.names != ("translation_x", "translation_y"):
        return _by_derivatives(transformation, image, middle, half)
    exact = _bilinear(transformation, image, middle, half)
    ends = [(middle + sign * (half - 1e-9))[:, geometric] for sign in (-1, 1)]
    inside = (ends[1].ceil() - ends[0].floor() <= 1).all(1)[:, None, None, None]
    if inside.all():
        return exact
    form = _by_derivatives(transformation, image, middle, half)
    return AffineForm(
        torch.where(inside, exact.centre, form.centre),
        torch.where(inside[:, None], exact.slopes, torch.cat([form.slopes, torch.zeros_like(form.slopes[:, :1])], 1)),
        torch.where(inside, 0.0, form.radius),
    )


def _bilinear(transformation: Transformation, image: Tensor, middle: Tensor, half: Tensor) -> AffineForm:
    """Return the forms of translations within boxes that cross no whole pixel, with a symbol more: the product of their two.

    There a pixel is bilinear in the parameters, so that the images at the corners of the box give it.
    """
    only, (x, y) = _moving(transformation)
    signs = torch.cartesian_prod(*[middle.new_tensor([-1.0, 1.0])] * 2)  # (4, 2)
    points = (middle[:, None, [x, y]] + signs * half[:, None, [x, y]]).flatten(0, 1)
    corners = transform(only, image.expand(len(points), -1, -1, -1), points).unflatten(0, (len(middle), 4))
    a, b, c, d = corners.unbind(1)
    slopes = image.new_zeros(len(middle), len(transformation.names) + 1, *image.shape)
    slopes[:, x], slopes[:, y], slopes[:, -1] = (c + d - a - b) / 4, (b + d - a - c) / 4, (a + d - b - c) / 4
    return AffineForm(corners.mean(1), slopes, torch.zeros_like(a))


def _by_derivatives(transformation: Transformation, image: Tensor, middle: Tensor, half: Tensor) -> AffineForm:
    channels, height, width = image.shape
    names, count = list(transformation.names), len(middle)
    only, geometric = _moving(transformation)
    p: dict[str, TensorInterval] = {
        names[k]: TensorInterval((middle - half)[:, k, None, None], (middle + half)[:, k, None, None])
        for k in geometric
    }
    grid_x, grid_y = (t.expand(count, height, width) for t in pixel_grid(height, width, image.dtype, image.device))
    unit = TensorInterval(*[image.new_ones(count, 1, 1)] * 2)
    zero = TensorInterval(*[image.new_zeros(count, 1, 1)] * 2)
    cos, sin = unit, zero
    if "rotation" in p:
        k = names.index("rotation")
        cos, sin = _cos_sin(torch.deg2rad(middle[:, k, None, None]), torch.deg2rad(half[:, k, None, None]))
    x, y = source_of(TensorInterval(grid_x, grid_x), TensorInterval(grid_y, grid_y), p, cos, sin)
    column = TensorInterval(x.low + (width - 1) / 2 - 1e-9, x.high + (width - 1) / 2 + 1e-9)
    row = TensorInterval((height - 1) / 2 - y.high - 1e-9, (height - 1) / 2 - y.low + 1e-9)
    values, by_column, by_row = _ranges(image, row, column, transformation.border)
    slopes, radius = (
        image.new_zeros(count, len(names), channels, height, width),
        image.new_zeros(count, channels, height, width),
    )
    for name, (dx, dy) in _derivatives(p, grid_x, grid_y, cos, sin).items():
        at = names.index(name)
        d = by_column * _per_channel(dx, height, width) - by_row * _per_channel(dy, height, width)
        step = half[:, at, None, None, None]
        slopes[:, at] = (d.low + d.high) / 2 * step
        radius += (d.high - d.low) / 2 * step
    centre = transform(only, image.expand(count, -1, -1, -1), middle[:, geometric])
    return AffineForm(centre, slopes, radius).within(values.low, values.high)


def _moving(transformation: Transformation) -> tuple[Transformation, list[int]]:
    """Return the part of a transformation that moves pixels, and which of the P parameters are its."""
    moving = {kind.name for kind in transformation.kinds if kind.geometric}
    ranges = tuple((name, size) for name, size in transformation.ranges if name in moving)
    of_each = [kind.geometric for kind in transformation.kinds for _ in kind.parameters]
    return Transformation(ranges, transformation.border), [k for k, is_moving in enumerate(of_each) if is_moving]


def _per_channel(interval: TensorInterval, height: int, width: int) -> TensorInterval:
    """Return an interval (B, 1 or H, 1 or W) as (B, 1, H, W)."""
    return TensorInterval(*(t.expand(-1, height, width)[:, None] for t in (interval.low, interval.high)))


def _cos_sin(middle: Tensor, half: Tensor) -> tuple[TensorInterval, TensorInterval]:
    """Enclose cosine and sine: between their ends, and half^2 / 2 beyond, by the error of linear interpolation."""
    ends = [middle - half, middle + half]
    room = half**2 / 2 + 1e-15
    pairs = [(f(ends[0]), f(ends[1])) for f in (torch.cos, torch.sin)]
    cos, sin = (
        TensorInterval((torch.minimum(a, b) - room).clamp(-1, 1), (torch.maximum(a, b) + room).clamp(-1, 1))
        for a, b in pairs
    )
    return cos, sin


def _derivatives(
    p: Mapping[str, TensorInterval], grid_x: Tensor, grid_y: Tensor, cos: TensorInterval, sin: TensorInterval
) -> dict[str, tuple[TensorInterval, TensorInterval]]:
    """Enclose the derivatives of the source (x, y) by every parameter, by name; see `source_of`."""
    x, y = TensorInterval(grid_x, grid_x), TensorInterval(grid_y, grid_y)
    unit = TensorInterval(torch.ones_like(cos.low), torch.ones_like(cos.low))
    shear = p.get("shear", TensorInterval(torch.zeros_like(cos.low), torch.zeros_like(cos.low)))
    scale = p.get("scale", unit)
    if "translation_x" in p:
        x, y = x - p["translation_x"], y - p["translation_y"]
    across, along = cos * x + sin * y, cos * y - sin * x
    result: dict[str, tuple[TensorInterval, TensorInterval]] = {}
    if "rotation" in p:
        degree = TensorInterval(*[torch.full_like(cos.low, math.pi / 180)] * 2)
        result["rotation"] = ((along + shear * across) / scale * degree, (-across) / scale * degree)
    if "translation_x" in p:
        result["translation_x"] = (-(cos + shear * sin) / scale, sin / scale)
        result["translation_y"] = ((shear * cos - sin) / scale, -cos / scale)
    if "shear" in p:
        result["shear"] = (-along / scale, TensorInterval(torch.zeros_like(along.low), torch.zeros_like(along.low)))
    if "scale" in p:
        result["scale"] = (-((across - shear * along) / scale / scale), -(along / scale / scale))
    return result


def _ranges(
    image: Tensor, row: TensorInterval, column: TensorInterval, border: str
) -> tuple[TensorInterval, TensorInterval, TensorInterval]:
    """Enclose the interpolated value and its derivatives by column and by row over boxes of source points.

    Args:
        image: float64 (C, H, W).
        row: (B, H, W), the ends of the rows.
        column: (B, H, W).
        border: what lies outside of the image, one of `BORDERS`.

    Returns:
        Three intervals (B, C, H, W).
    """
    images = image.expand(len(row.low), *image.shape)
    top, left = row.low.floor(), column.low.floor()
    crossed = torch.maximum(row.high.floor() - top, column.high.floor() - left)
    cells = min(_CELLS, int(crossed.max()) + 1)
    infinite = torch.full_like(images, torch.inf)
    lows, highs = [infinite.clone() for _ in range(3)], [-infinite for _ in range(3)]
    for i in range(cells):
        for j in range(cells):
            r, c = top + i, left + j
            is_met = ((r <= row.high) & (c <= column.high))[:, None]
            down = [(end - r).clamp(0, 1)[:, None] for end in (row.low, row.high)]
            across = [(end - c).clamp(0, 1)[:, None] for end in (column.low, column.high)]
            corners = ((r, c), (r, c + 1), (r + 1, c), (r + 1, c + 1))
            a, b, d, e = (pixels_at(images, *corner, border) for corner in corners)
            by_column = [(b - a) * (1 - f) + (e - d) * f for f in down]
            by_row = [(d - a) * (1 - f) + (e - b) * f for f in across]
            value = [(a * (1 - g) + b * g) * (1 - f) + (d * (1 - g) + e * g) * f for f in down for g in across]
            for kind, ends in enumerate((value, by_column, by_row)):
                stacked = torch.stack(ends)
                lows[kind] = torch.where(is_met, torch.minimum(lows[kind], stacked.amin(0)), lows[kind])
                highs[kind] = torch.where(is_met, torch.maximum(highs[kind], stacked.amax(0)), highs[kind])
    beyond = (crossed >= _CELLS)[:, None]
    if beyond.any():
        padded_image = torch.nn.functional.pad(image, (1, 1, 1, 1))
        for kind, of_all in enumerate((padded_image, padded_image.diff(dim=2), padded_image.diff(dim=1))):
            if kind and border == REFLECT:  # a mirror image falls where the image rises
                of_all = torch.cat([of_all, -of_all], 1)
            lows[kind] = torch.where(beyond, of_all.flatten(1).amin(1)[:, None, None], lows[kind])
            highs[kind] = torch.where(beyond, of_all.flatten(1).amax(1)[:, None, None], highs[kind])
    intervals = [TensorInterval(low, high) for low, high in zip(lows, highs, strict=True)]
    return intervals[0], intervals[1], intervals[2]
