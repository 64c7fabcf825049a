"""Linear bounds of activations over intervals.

Sources: CROWN (Zhang et al. 2018, arXiv 1811.00866), alpha-CROWN (Xu et al. 2021, arXiv 2011.13824).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth

_GRID = 256


@dataclass(frozen=True, slots=True)
class Lines:
    """Bounds of a smooth activation: low z + low_offset <= f(z) <= up z + up_offset; each (n, size), or of chosen rows."""

    low: Tensor
    low_offset: Tensor
    up: Tensor
    up_offset: Tensor

    def to(self, dtype: torch.dtype) -> Lines:
        """Return the same in another precision."""
        return Lines(*(t.to(dtype) for t in (self.low, self.low_offset, self.up, self.up_offset)))

    def at(self, rows: Tensor) -> Lines:
        """Select the samples `rows`."""
        return Lines(*(t[rows] for t in (self.low, self.low_offset, self.up, self.up_offset)))


@dataclass(frozen=True, slots=True)
class Jumps:
    """Values of the columns that jump, beside those of `Kinks`.

    low_offset: (m, C), added to the line from below. error: (1, C), by how much the input may be off. which: bool (1, C).
    """

    low_offset: Tensor
    error: Tensor
    which: Tensor

    def at(self, rows: Tensor) -> Jumps:
        """Select `rows`."""
        return self if len(self.low_offset) == 1 else replace(self, low_offset=self.low_offset[rows])


@dataclass(frozen=True, slots=True)
class Kinks:
    """Bounds of max(z, c z) at the columns, (m, C) each, or (1, C) where all rows share them.

    up z + offset is the chord, a bound from above; the line of slope base + rise alpha, for any alpha in [0, 1], one from
    below. open: 1 where the unit can still be split, else 0, and then both lines are the activation itself. `windows` writes others into
    up and offset, of which only the sum over a window's kinks is a bound.
    """

    up: Tensor
    offset: Tensor
    base: Tensor
    rise: Tensor
    open: Tensor
    jumps: Jumps | None = None

    def at(self, rows: Tensor) -> Kinks:
        """Select `rows`."""
        up, offset, base, rise, open_ = (
            t if len(t) == 1 else t[rows] for t in (self.up, self.offset, self.base, self.rise, self.open)
        )
        return Kinks(up, offset, base, rise, open_, self.jumps and self.jumps.at(rows))


def kinks(low: Tensor, up: Tensor, least: Tensor) -> Kinks:
    """Over [low, up] (m, C), of activations with the slopes `least` (C,) below 0.

    Written without a case for each kind of interval: the chord of ReLU is up+ / (up+ + (-low)+), which is 1 and 0 for those
    that do not change their sign, and the others are sums of it and a line.
    """
    above, below = up.clamp(min=0), (-low).clamp(min=0)
    chord = above / (above + below + 1e-30)
    rise = 1 - least
    slope, offset = least + rise * chord, rise * below * chord
    open_ = ((above > 0) & (below > 0)).to(low)
    return Kinks(slope, offset, slope + open_ * (least - slope), rise * open_, open_)


def with_jumps(relaxed: Kinks, low: Tensor, up: Tensor, errors: Tensor) -> Kinks:
    """Return `relaxed` with the lines of jumps from 0 to 1 over [low, up] (m, C) where `errors` (1, C) are not negative.

    From above 1 + z / -low or 1, from below alpha z / up; both moved by what the input may be off.
    """
    which, error = errors >= 0, errors.clamp(min=0)
    on, open_ = (low >= 0).to(low), ((low < 0) & (up > 0)).to(low)
    above, below = up.clamp(min=1e-30), (-low).clamp(min=1e-30)
    slope = torch.where(above < below, open_ / below, 0.0)
    rise = torch.where(above > 2 * error, open_ / above, 0.0)
    zeros = torch.zeros_like(slope)
    pairs = (
        (slope, relaxed.up),
        (on + open_ + error * slope, relaxed.offset),
        (zeros, relaxed.base),
        (rise, relaxed.rise),
        (open_, relaxed.open),
    )
    up_slope, offset, base, rise_of_all, open_of_all = (torch.where(which, jump, kink) for jump, kink in pairs)
    low_offset = torch.where(which, on - error * rise, 0.0)
    return Kinks(up_slope, offset, base, rise_of_all, open_of_all, Jumps(low_offset, error, which))


def smooth_lines(smooth: Smooth, low: Tensor, up: Tensor) -> Lines:
    """Return lines that bound a smooth activation over [low, up], (n, size): of a few slopes the one that is tightest in the middle.

    For a slope s the offset is the extremum of f(z) - s z, which is taken on a grid and corrected by what a function of
    that curvature can do between two points of it, curvature h^2 / 8. So the lines are bounds, not estimates.
    """
    f = smooth.function
    middle, step = (low + up) / 2, (up - low) / 4
    chord = (f(up) - f(low)) / (up - low).clamp(min=1e-12)
    slopes = [torch.where(up - low > 1e-6, chord, _derivative(smooth, middle))]
    slopes += [_derivative(smooth, at) for at in (low, middle - step, middle, middle + step, up)]
    floor, ceiling = _extrema(smooth, slopes[0], low, up)
    below, above = (slopes[0], floor), (slopes[0], ceiling)
    for slope in slopes[1:]:
        floor, ceiling = _extrema(smooth, slope, low, up)
        below = _better(below, (slope, floor), slope * middle + floor > below[0] * middle + below[1])
        above = _better(above, (slope, ceiling), slope * middle + ceiling < above[0] * middle + above[1])
    return Lines(*below, *above)


def _derivative(smooth: Smooth, z: Tensor) -> Tensor:
    """By a difference: any slope is valid, a good one is near the derivative."""
    return (smooth.function(z + 1e-4) - smooth.function(z - 1e-4)) / 2e-4


def _better(current: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], where: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(where, other[0], current[0]), torch.where(where, other[1], current[1])


def _extrema(smooth: Smooth, slope: Tensor, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a lower bound of the minimum, an upper bound of the maximum) of f(z) - slope z over [low, up]."""
    least, most = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
    for i in range(_GRID + 1):
        z = low + (up - low) * (i / _GRID)
        value = smooth.function(z) - slope * z
        least, most = torch.minimum(least, value), torch.maximum(most, value)
    between = smooth.curvature * ((up - low) / _GRID) ** 2 / 8
    rounding = 1e-12 * (1 + least.abs() + most.abs())
    return least - between - rounding, most + between + rounding
