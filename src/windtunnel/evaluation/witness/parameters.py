"""The witness's search of a transformation: points of a grid, corners among them, then random ones."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.transformations import Transformation
from windtunnel.core.transformed import transform, unit_tensors
from windtunnel.evaluation.witness.search import WitnessResult

_GRID = 61  # points of the grid, about
_SHORT = 1 - 1e-6  # of the half ranges, so that rounding leaves no point outside


def random_units(n: int, dimensions: int, generator: torch.Generator, *, corner: bool) -> Tensor:
    """Random points of [-1, 1]^P, or random corners of it; (n, P) float64."""
    units = 2 * torch.rand(n, dimensions, generator=generator, dtype=torch.float64) - 1
    return (units.sign() if corner else units) * _SHORT


def at_units(
    transformation: Transformation, epsilon: float, clean: Tensor, units: Tensor, content: Tensor | None = None
) -> Tensor:
    """Return the samples clean (n, C, H, W) at the points units (n, P) of the region shrunk to `epsilon`.

    Of a square the last two units are its place; content (n, C, H, W) fills a patch.
    """
    if transformation.is_square:
        side, shape = transformation.side(epsilon), clean.shape[2:]
        rooms = torch.tensor([size - side for size in shape], dtype=units.dtype)
        corners = ((units[:, 1:] + 1) / 2 * (rooms + 1)).floor().clamp(min=0).minimum(rooms)
        units = torch.cat([torch.full_like(units[:, :1], side), corners], 1)
        return transform(transformation, clean, units, content)
    identity, half_ranges = unit_tensors(transformation, torch.float64)
    return transform(transformation, clean, identity + units * epsilon * half_ranges)


def search_parameters(
    classifier: Classifier,
    transformation: Transformation,
    epsilon: float,
    inputs: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    passes: int,
) -> WitnessResult:
    """Search examples of the samples `inputs` (n, C, H, W) in a region of a transformation, with at most `passes` passes in all."""
    n, dimensions = len(inputs), len(transformation.names)
    side = max(3, round(_GRID ** (1 / dimensions)) | 1)
    ticks = (torch.linspace(-1, 1, side, dtype=torch.float64) * _SHORT).tolist()
    lattice = torch.tensor(list(itertools.product(ticks, repeat=dimensions)), dtype=torch.float64)
    each, result, criterion = max(1, passes // max(1, n)), WitnessResult.none(inputs), classifier.criterion
    for i, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        random = random_units(max(0, each - len(lattice)), dimensions, generator, corner=False)
        points, content = torch.cat([lattice, random])[:each], None
        if transformation.is_patch:
            content = torch.randint(2, (len(points), *inputs.shape[1:]), generator=generator).to(inputs)
        images = at_units(transformation, epsilon, inputs[i].expand(len(points), -1, -1, -1), points, content)
        logits = classifier.logits(images)
        losses = criterion.margin_loss(logits, labels[i].expand(len(points)))
        worst = int(losses.argmax())
        result.passes[i] = len(points)
        if losses[worst] > 0:
            result.broken[i], result.examples[i], result.margins[i] = True, images[worst], losses[worst]
            result.predictions[i] = criterion.predict(logits[worst][None], labels[i][None])[0]
            result.methods[i] = "grid of parameters" if worst < len(lattice) else "random parameters"
    return result
