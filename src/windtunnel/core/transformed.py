"""Images under the transformations of `core.transformations`, by the conventions of DeepG (Balunovic et al. 2019).

Pixel centres are the coordinates, the origin is the middle of the image, x points right and y up. What lies outside of the image is
zero, or by the border of the region the nearest pixel (edge) or the mirror image about the outermost pixel centres (reflect). All
geometric changes of a region are one map and one bilinear interpolation: the image is scaled, sheared, rotated, then moved. Then come
blur, saturation, hue, contrast and brightness (value * contrast + brightness), and gamma; values are clamped to [0, 1].
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from windtunnel.core.transformations import OWNERS, REFLECT, ZEROS, Transformation

Coordinate = TypeVar("Coordinate", bound=Any)  # Tensor, or an interval with the same arithmetic
LEAST_POSITIVE = 1e-12  # smaller positive values count as this under gamma, whose gradient they would make infinite
LEAST_SIGMA = 0.03  # of a blur: a smaller one changes no value
LUMA = (0.299, 0.587, 0.114)  # Rec. 601, of red, green and blue


def source_of(
    x: Coordinate, y: Coordinate, p: Mapping[str, Coordinate], cos: Coordinate, sin: Coordinate
) -> tuple[Coordinate, Coordinate]:
    """Return the point of the clean image whose value the transformed one shows at (x, y), under the parameters that `p` has.

    cos, sin: of the angle, 1 and 0 where nothing turns.
    """
    if "translation_x" in p:
        x, y = x - p["translation_x"], y - p["translation_y"]
    if "rotation" in p:
        x, y = cos * x + sin * y, cos * y - sin * x
    if "shear" in p:
        x = x - p["shear"] * y
    if "scale" in p:
        x, y = x / p["scale"], y / p["scale"]
    return x, y


def pixel_grid(height: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(x (1, W), y (H, 1)) of the pixel centres."""
    x = torch.arange(width, dtype=dtype, device=device) - (width - 1) / 2
    y = (height - 1) / 2 - torch.arange(height, dtype=dtype, device=device)
    return x[None], y[:, None]


def transform(
    transformation: Transformation, inputs: Tensor, parameters: Tensor, content: Tensor | None = None
) -> Tensor:
    """Transform each image by its parameters; differentiable in the parameters of all kinds but squares.

    Args:
        transformation: the kinds of change.
        inputs: float (n, C, H, W) in [0, 1].
        parameters: float (n, P), in units of the kinds; the arithmetic is done in their dtype.
        content: float (n, C, H, W), images whose values a patch takes at its place.

    Returns:
        The dtype and shape of `inputs`.
    """
    p = {name: parameters[:, i, None, None] for i, name in enumerate(transformation.names)}
    if transformation.is_square:
        inside = inside_square(parameters, *inputs.shape[2:])[:, None]
        return torch.where(inside, torch.zeros_like(inputs) if content is None else content, inputs)
    values = inputs.to(parameters.dtype)
    if any(kind.geometric for kind in transformation.kinds):
        values = _moved(values, p, transformation.border)
    if "blur" in p:
        for size in inputs.shape[2:]:  # the rows, then the columns
            values = (blur_weights(p["blur"], size)[:, None] @ values).mT
    return coloured(values, {name: value[:, None] for name, value in p.items()}).to(inputs.dtype)


def inside_square(parameters: Tensor, height: int, width: int) -> Tensor:
    """Return True for the pixels of each square; (n, H, W) from parameters (n, 3): side, row, column."""
    side, row, column = (parameters[:, i, None] for i in range(3))
    rows = torch.arange(height, device=parameters.device)
    columns = torch.arange(width, device=parameters.device)
    in_rows, in_columns = (rows >= row) & (rows < row + side), (columns >= column) & (columns < column + side)
    return in_rows[:, :, None] & in_columns[:, None, :]


def pixels_at(values: Tensor, row: Tensor, column: Tensor, border: str) -> Tensor:
    """Return the pixels of images that go on beyond their border.

    Args:
        values: float (n, C, H, W).
        row: whole numbers (n, H', W') of any size; of row and column 0 is the first.
        column: (n, H', W').
        border: one of `BORDERS`.

    Returns:
        (n, C, H', W').
    """
    flat = torch.zeros_like(row)
    for at, size in ((row, values.shape[2]), (column, values.shape[3])):
        if border == REFLECT:
            at = size - 1 - (at % max(2 * size - 2, 1) - (size - 1)).abs()
        margin = int(border == ZEROS)
        flat = flat * (size + 2) + at.clamp(-margin, size - 1 + margin) + 1
    index = flat.long().flatten(1)[:, None].expand(-1, values.shape[1], -1)
    padded = torch.nn.functional.pad(values, (1, 1, 1, 1)).flatten(2)
    return padded.gather(2, index).view(*values.shape[:2], *row.shape[1:])


def _moved(values: Tensor, p: Mapping[str, Tensor], border: str) -> Tensor:
    """Values (n, C, H, W) at the points that the geometric parameters (n, 1, 1) select."""
    n, _, height, width = values.shape
    grid_x, grid_y = pixel_grid(height, width, values.dtype, values.device)
    angle = torch.deg2rad(p.get("rotation", values.new_zeros(n, 1, 1)))
    x, y = source_of(grid_x.expand(n, height, width), grid_y.expand(n, height, width), p, angle.cos(), angle.sin())
    column, row = x + (width - 1) / 2, (height - 1) / 2 - y
    left, top = column.detach().floor(), row.detach().floor()
    across, down = (column - left)[:, None], (row - top)[:, None]
    corners = ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1))
    a, b, c, d = (pixels_at(values, r, c, border) for r, c in corners)
    return (a * (1 - across) + b * across) * (1 - down) + (c * (1 - across) + d * across) * down


def blur_weights(sigma: Tensor, size: int) -> Tensor:
    """Weights (n, size, size) of a Gaussian between the pixels of a line, whose sum is 1 inside the image; sigma (n, 1, 1)."""
    line = torch.arange(size, dtype=sigma.dtype, device=sigma.device)
    squares = (line[:, None] - line) ** 2
    return (-squares / (2 * sigma.abs().clamp(min=LEAST_SIGMA) ** 2)).softmax(-1)


def coloured(values: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """Values (n, C, H, W) under the colour parameters (n, 1, 1, 1) that `p` has."""
    if "saturation" in p:
        grey = (values * values.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
        values = (grey + p["saturation"] * (values - grey)).clamp(0, 1)
    if "hue" in p:
        angle = torch.deg2rad(p["hue"])
        middle, turned = values.mean(1, keepdim=True), (values.roll(1, 1) - values.roll(-1, 1)) / 3**0.5
        values = (middle + angle.cos() * (values - middle) + angle.sin() * turned).clamp(0, 1)
    if "contrast" in p or "brightness" in p:
        values = (values * p.get("contrast", 1.0) + p.get("brightness", 0.0)).clamp(0, 1)
    if "gamma" in p:
        values = values.clamp(min=LEAST_POSITIVE) ** p["gamma"] * (values > 0)
    return values


def unit_tensors(transformation: Transformation, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(identity, half ranges) of a region, each (P,)."""
    return (torch.tensor(transformation.identity, dtype=dtype), torch.tensor(transformation.half_ranges, dtype=dtype))


def clipped(transformation: Transformation, parameters: Tensor, epsilon: float) -> Tensor:
    """Parameters (N, P) moved into the region shrunk to `epsilon`, where rounding has left them outside of it."""
    if transformation.is_square:
        return parameters
    identity, half_ranges = unit_tensors(transformation, parameters.dtype)
    reach, is_even = half_ranges * epsilon, torch.tensor(transformation.is_even)
    parameters = torch.where(is_even, parameters.abs(), parameters)  # the same image
    return parameters.minimum(identity + reach).maximum(identity - reach)


def parameter_distances(transformation: Transformation, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return the largest |parameter - identity| relative to its range; inf for a change of another kind.

    Args:
        transformation: the region.
        parameters: float (N,) by the name of the parameter, as robustness_data.pt has them.

    Returns:
        float32 (N,), at most 1 inside the region; NaN where a parameter is NaN.
    """
    columns, ranges = list(parameters.items()), dict(transformation.ranges)
    measured = torch.zeros(len(columns[0][1]), dtype=torch.float64)
    for name, values in columns:
        kind = OWNERS[name]
        if kind.is_square and not name.endswith("_side"):
            continue
        apart = (values.double() - kind.identity).abs()
        relative = apart / ranges.get(kind.name, 0.0)
        if kind.name == "occlusion":  # a smaller black square is another image, no weaker change
            relative = relative.where(relative == 1, torch.inf)
        measured = torch.maximum(measured, relative.where(apart != 0, 0.0))
    return measured.float()
