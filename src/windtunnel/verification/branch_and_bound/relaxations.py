"""Linear bounds of activations over intervals.

Sources: CROWN (Zhang et al. 2018, arXiv 1811.00866), alpha-CROWN (Xu et al. 2021, arXiv 2011.13824).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.verification.branch_and_bound.activations import Kink, Smooth

_GRID = 256


@dataclass(frozen=True, slots=True)
class Lines:
    """Over an interval of z: low * z + low_offset <= activation(z) <= up * z + up_offset; each (m, size).

    low_offset: None for zeros. open: where a kink may still be split, and its lower slope be anything from `least` to 1.
    """

    low: Tensor
    low_offset: Tensor | None
    up: Tensor
    up_offset: Tensor
    open: Tensor
    least: Tensor | float = 0.0

    def at(self, index: Tensor) -> Lines:
        """Those of the rows at `index`; lines that all rows share stay as they are."""

        def of(t: Tensor) -> Tensor:
            return t if len(t) == 1 else t[index]

        offset = None if self.low_offset is None else of(self.low_offset)
        return Lines(of(self.low), offset, of(self.up), of(self.up_offset), of(self.open), self.least)

    def least_at(self, units: Tensor) -> Tensor | float:
        """The least lower slope of each of `units`."""
        return self.least[:, units] if isinstance(self.least, Tensor) else self.least


def kink_lines(kink: Kink, low: Tensor, up: Tensor, shape: tuple[int, ...]) -> Lines:
    """Of max(z, c z) over [low, up], (m, size): the chord above; below, until it is chosen, the line of slope c."""
    c: Tensor | float = 0.0
    if kink.slope.numel() > 1 or float(kink.slope):
        c = kink.slope.to(low).expand(1, *shape).reshape(1, -1)
    active, off = low >= 0, up <= 0
    open_ = ~(active | off)
    chord = (up - c * low) / (up - low).clamp(min=1e-30)
    slope = torch.where(open_, chord, torch.where(active, 1.0, c + torch.zeros_like(low)))
    return Lines(torch.where(active, 1.0, c + torch.zeros_like(low)), None, slope,
                 torch.where(open_, up * (1 - chord), 0.0), open_, c)  # fmt: skip


def smooth_lines(smooth: Smooth, low: Tensor, up: Tensor) -> Lines:
    """Of a smooth activation over [low, up], (m, size): of a few slopes the one that is tightest in the middle.

    For a slope s the offset is the extremum of f(z) - s z, which is taken on a grid and corrected by what a function of
    that curvature can do between two points of it, curvature h^2 / 8. So the lines are bounds, not estimates.
    """
    f = smooth.function
    wide = (up - low).clamp(min=1e-6)
    middle, step = (low + up) / 2, wide / 4
    chord = (f(up) - f(low)) / (up - low).clamp(min=1e-12)
    slopes = [torch.where(up - low > 1e-6, chord, (f(middle + 1e-4) - f(middle - 1e-4)) / 2e-4)]
    for at in (low, middle - step, middle, middle + step, up):
        slopes.append((f(at + 1e-4) - f(at - 1e-4)) / 2e-4)  # any slope is valid: a difference will do
    best: list[Tensor] | None = None
    for s in slopes:
        floor, ceiling = _extrema(smooth, s, low, up)
        if best is None:
            best = [s, floor, s, ceiling]
            continue
        for k, (offset, sign) in enumerate(((floor, 1.0), (ceiling, -1.0))):
            better = sign * (s * middle + offset) > sign * (best[2 * k] * middle + best[2 * k + 1])
            best[2 * k] = torch.where(better, s, best[2 * k])
            best[2 * k + 1] = torch.where(better, offset, best[2 * k + 1])
    assert best is not None
    return Lines(best[0], best[1], best[2], best[3], torch.zeros_like(low, dtype=torch.bool))


def _extrema(smooth: Smooth, slope: Tensor, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(a lower bound of the minimum, an upper bound of the maximum) of f(z) - slope z over [low, up]."""
    least, most = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
    for i in range(_GRID + 1):
        z = low + (up - low) * (i / _GRID)
        value = smooth.function(z) - slope * z
        least, most = torch.minimum(least, value), torch.maximum(most, value)
    between = smooth.curvature * ((up - low) / _GRID) ** 2 / 8
    rounding = 1e-12 * (1 + least.abs() + most.abs())
    return least - between - rounding, most + between + rounding
