"""Search for images that are copies of others but for noise, a grey level or a shift by a pixel."""

import torch
from torch import Tensor, nn

from windtunnel.core.scratch import by_samples

FINE, COARSE = 32, 8  # pixels a side: of images that are compared, and of those that candidates are searched by
SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))
CANDIDATES = 3  # nearest coarse images of a query that are compared at FINE
QUERIES = 64  # at a time: 64 x 9 shifts x 10,000 distances are 23 MB
NEAR = 0.1  # of the contrast of the image; docs/sanity.md has what this finds in honest data
NOISY = 0.6  # of the contrast, where the difference is noise without structure
WHITE = 0.12  # largest correlation of neighbouring pixels of noise
PIXELS = 256  # below these a correlation of neighbours says little


def fine_images(inputs: Tensor) -> Tensor:
    """Return images (N, C, H, W) with sides of at most FINE pixels, by averaging; float32."""
    size = (min(inputs.shape[2], FINE), min(inputs.shape[3], FINE))
    return by_samples(lambda part: nn.functional.adaptive_avg_pool2d(part, size), inputs)


def _coarse(images: Tensor) -> Tensor:
    """Return fine images (n, C, h, w) as vectors of COARSE pixels a side, less their mean; (n, d)."""
    size = (min(images.shape[2], COARSE), min(images.shape[3], COARSE))
    flat = nn.functional.adaptive_avg_pool2d(images, size).flatten(1)
    return flat - flat.mean(1, keepdim=True)


def _are_copies(first: Tensor, other: Tensor) -> Tensor:
    """Return True where two images (n, C, h, w) differ by little, or by noise alone; bool (n,)."""
    contrast = (first - first.mean((1, 2, 3), keepdim=True)).flatten(1).norm(dim=1)
    apart = first - other
    apart = apart - apart.mean((1, 2, 3), keepdim=True)  # a grey level more or less
    energy = apart.square().flatten(1).sum(1)
    ratio = energy.sqrt() / contrast.clamp(min=1e-3 * first[0].numel() ** 0.5)
    neighbours = (apart[:, :, 1:] * apart[:, :, :-1], apart[..., 1:] * apart[..., :-1])
    correlations = [products.flatten(1).sum(1) for products in neighbours]
    correlation = torch.stack(correlations).abs().amax(0) / energy.clamp(min=1e-12)
    is_noise = (correlation < WHITE) & (ratio < NOISY) & (first[0, 0].numel() >= PIXELS)
    is_copy: Tensor = (ratio < NEAR) | is_noise
    return is_copy


def copies(inputs: Tensor, indices: Tensor, known_images: Tensor, *, earlier: bool = False) -> Tensor:
    """Find the image of `known_images` that each of `inputs[indices]` is a copy of.

    Each image is moved by a pixel in every direction. The nearest of COARSE pixels a side over all these are the candidates, which
    are compared with it at FINE pixels, less the means and a border of one pixel.

    Args:
        inputs: float32 (N, C, H, W), read QUERIES at a time.
        indices: int64 (n,), which of them.
        known_images: float32 (M, C, h, w), of `fine_images`.
        earlier: compare sample i with the images before place i of `known_images` alone.

    Returns:
        int64 (n,), indices of `known_images`; -1 where there is none.

    """
    coarse = by_samples(_coarse, known_images)
    originals = torch.full((len(indices),), -1)
    can_shift = min(known_images.shape[2:]) > 2
    border = slice(1, -1) if can_shift else slice(None)
    for rows in torch.arange(len(indices)).split(QUERIES):
        shifted = (inputs[indices[rows]].roll(offset, (2, 3)) for offset in (SHIFTS if can_shift else ((0, 0),)))
        images = torch.stack([fine_images(moved) for moved in shifted], 1)
        distances = torch.cdist(_coarse(images.flatten(0, 1)), coarse).view(len(rows), images.shape[1], -1)
        if earlier:
            later = torch.arange(len(known_images)) >= indices[rows, None]
            distances.masked_fill_(later[:, None], torch.inf)
        nearest, shifts = distances.min(1)
        values, candidates = nearest.topk(min(CANDIDATES, len(known_images)), largest=False)
        for value, candidate in zip(values.T.flip(0), candidates.T.flip(0), strict=True):
            moved = images[torch.arange(len(rows)), shifts.gather(1, candidate[:, None]).squeeze(1)]
            pair = (moved[..., border, border], known_images[candidate][..., border, border])
            is_copy = _are_copies(*pair) & value.isfinite()
            originals[rows[is_copy]] = candidate[is_copy]
    return originals
