"""Random changes of training images that keep what they show: affine, shift (a crop of the padded image), and erasing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DEGREES, SCALE, SHIFT = 10.0, 0.1, 0.1  # rotation up to 10 degrees, size and place up to a tenth
ERASED, LARGEST = 0.5, 0.4  # half of the images lose a rectangle of at most 0.4 of each side


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (N, C, H, W), each rotated, scaled and shifted by bilinear interpolation (0 beyond the edge), then erased.

    Random erasing (Zhong et al. 2020, arXiv 1708.04896) with the image's own mean. `generator` is on the CPU.
    """
    return erase(affine(images, generator), generator)


def affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images under a random rotation, scale and shift of their own."""
    n = len(images)
    angle, size, down, right = (2 * torch.rand(4, n, generator=generator) - 1).unbind()
    angle, size = angle * math.radians(DEGREES), 1 + SCALE * size
    matrices = torch.zeros(n, 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos() / size
    matrices[:, 0, 1], matrices[:, 1, 0] = -angle.sin() / size, angle.sin() / size
    # affine_grid measures from -1 to 1: twice the share of a side.
    matrices[:, 0, 2], matrices[:, 1, 2] = 2 * SHIFT * right, 2 * SHIFT * down
    grid = torch.nn.functional.affine_grid(matrices.to(images), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def erase(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images of which half lose a rectangle of random size and place, filled with the image's mean."""
    n, _, height, width = images.shape
    draw = torch.rand(5, n, generator=generator)
    tall, wide = (LARGEST * draw[1] * height).ceil(), (LARGEST * draw[2] * width).ceil()
    top, column = (draw[3] * (height - tall + 1)).floor(), (draw[4] * (width - wide + 1)).floor()
    rows, columns = torch.arange(height)[None], torch.arange(width)[None]
    in_rows = (rows >= top[:, None]) & (rows < (top + tall)[:, None])
    in_columns = (columns >= column[:, None]) & (columns < (column + wide)[:, None])
    gone = in_rows[:, :, None] & in_columns[:, None, :] & (draw[0] < ERASED)[:, None, None]
    return torch.where(gone[:, None].to(images.device), images.mean((1, 2, 3), keepdim=True), images)
