"""Parts of the region of a patch: a place, and a box of the values at it. What a bound leaves open is split in one value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.transformations.affine_forms import AffineForm
from windtunnel.assessments.verification.transformations.envelopes import MARGIN
from windtunnel.assessments.verification.transformations.windows import Window
from windtunnel.core.transformed import inside_square

MOST_SYMBOLS = 48  # values of a patch with a symbol each; more are free boxes, which are cheaper and looser


@dataclass(frozen=True, slots=True)
class PatchParts:
    """m parts. places: (m, 3), side, row and column; low, high: float64 (m, C side^2), bounds of the values, channels first."""

    places: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def whole(cls, places: Tensor, channels: int) -> PatchParts:
        """Return one part for each of the places (m, 3): any values from 0 to 1."""
        low = torch.zeros(len(places), channels * int(places[0, 0]) ** 2, dtype=torch.float64)
        return cls(places, low, torch.ones_like(low))

    @classmethod
    def joined(cls, parts: list[PatchParts]) -> PatchParts:
        """Return the parts of all, one after the other."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("places", "low", "high")))

    def __len__(self) -> int:
        return len(self.places)

    def at(self, rows: Tensor | slice) -> PatchParts:
        """Return the parts `rows`, int64 or bool."""
        return PatchParts(self.places[rows], self.low[rows], self.high[rows])

    def form(self, image: Tensor) -> tuple[AffineForm, Window]:
        """Return the values of each part as a form (m, C, side, side), with a symbol for each, and where they are in the image.

        image: float64 (C, H, W).
        """
        side, (m, count) = int(self.places[0, 0]), self.low.shape
        shape = (len(image), side, side)
        half = ((self.high - self.low) / 2).view(m, *shape)
        centre = self.low.view(m, *shape) + half
        window = Window(self.places[:, 1:].long(), (side, side), image)
        if count > MOST_SYMBOLS:
            return AffineForm(centre, image.new_zeros(m, 1, *shape), half + MARGIN), window
        slopes = torch.diag_embed(half.flatten(1)).view(m, count, *shape)
        return AffineForm(centre, slopes, torch.full_like(centre, MARGIN)), window

    def corners(self, image: Tensor, slopes: Tensor) -> Tensor:
        """Return the images (m, C, H, W) whose values lie at the end that lowers the relaxed margin, whose slopes are `slopes`."""
        values = torch.where(slopes > 0, self.low, self.high)
        inside = inside_square(self.places, *image.shape[1:])[:, None].expand(-1, len(image), -1, -1)
        return image.expand(len(self), *image.shape).masked_scatter(inside, values.to(image))

    def halves(self, slopes: Tensor) -> PatchParts:
        """Return both halves of each part, cut in the value that the margin depends on most by `slopes` (m, C side^2)."""
        influence = slopes.abs() + 1e-9 * (self.high - self.low)
        axis = influence.argmax(1, keepdim=True)
        middle = ((self.low + self.high) / 2).gather(1, axis)
        first = PatchParts(self.places, self.low, self.high.scatter(1, axis, middle))
        return PatchParts.joined([first, PatchParts(self.places, self.low.scatter(1, axis, middle), self.high)])
