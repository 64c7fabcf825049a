"""The activations that linear bounds are known for, and these bounds.

A piecewise-linear activation is max(z, c z) with c < 1: ReLU has c = 0, leaky ReLU its negative slope.
Sources of the bounds: CROWN (Zhang et al. 2018, arXiv 1811.00866), alpha-CROWN (Xu et al. 2021, arXiv 2011.13824).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

_GRID = 256  # steps of an interval, at which a smooth activation is compared with a line


@dataclass(frozen=True, slots=True)
class Kink:
    """max(z, slope * z); slope: float64, below 1, broadcast against a batch of z."""

    slope: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return the activation itself."""
        return torch.maximum(z, self.slope.to(z) * z)


@dataclass(frozen=True, slots=True)
class Jump:
    """1 where z >= 0, else 0; within the float32 error bound of 0 either, see `network.RoundingErrors`."""

    def __call__(self, z: Tensor) -> Tensor:
        """Return the activation of z."""
        return (z >= 0).to(z)


@dataclass(frozen=True, slots=True)
class Smooth:
    """An activation of one number that is twice differentiable but for a few points.

    Attributes:
        name: What it is.
        function: The activation.
        curvature: An upper bound of the second derivative's size.
        bend: The sum of the sizes of the first derivative's jumps.
        steepest: An upper bound of the first derivative's size; no less than that of GELU by default.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    curvature: float
    bend: float = field(default=0.0, kw_only=True)
    steepest: float = field(default=1.13, kw_only=True)

    def __call__(self, z: Tensor) -> Tensor:
        """Return the activation itself."""
        return self.function(z)

    def slopes(self, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (slopes s, lower bounds of f(z) - s z, upper bounds) for vectors of intervals; (number of slopes, intervals) each."""
        middle, step = (low + up) / 2, (up - low) / 4
        chord = (self(up) - self(low)) / (up - low).clamp(min=1e-12)
        slopes = [torch.where(up - low > 1e-6, chord, self._derivative(middle))]
        slopes += [self._derivative(at) for at in (low, middle - step, middle, middle + step, up)]
        grid = low[:, None] + (up - low)[:, None] * (torch.arange(_GRID + 1, device=low.device) / _GRID)
        values = self(grid)
        between = (self.curvature * (up - low) / _GRID / 2 + self.bend) * (up - low) / _GRID / 4
        floors, ceilings = [], []
        for slope in slopes:
            least, most = (values - slope[:, None] * grid).aminmax(dim=1)
            rounding = 1e-12 * (1 + least.abs() + most.abs())
            floors.append(least - between - rounding)
            ceilings.append(most + between + rounding)
        return torch.stack(slopes), torch.stack(floors), torch.stack(ceilings)

    def _derivative(self, z: Tensor) -> Tensor:
        """By a difference: any slope is valid, a good one is near the derivative."""
        return (self.function(z + 1e-4) - self.function(z - 1e-4)) / 2e-4


@dataclass(frozen=True, slots=True)
class Convex(Smooth):
    """A convex activation, bounded by its chord and its tangents.

    Attributes:
        derivative: Its derivative.
        domain: The least and the largest number that its input can be, whatever the bounds of the input say.
    """

    derivative: Callable[[Tensor], Tensor]
    domain: tuple[float, float] = (-math.inf, math.inf)

    def slopes(self, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `Smooth.slopes`: the largest of f(z) - s z is at an end, the least where s touches."""
        middle, step = (low + up) / 2, (up - low) / 4
        points = torch.stack([middle, low, middle - step, middle + step, up])
        tangents, chord = self.derivative(points), (self(up) - self(low)) / (up - low).clamp(min=1e-12)
        is_wide = up - low > 1e-6
        slopes = torch.cat([tangents, torch.where(is_wide, chord, tangents[0])[None]])
        touched = torch.cat([points, middle[None]])
        rounding = 1e-12 * (1 + self(low).abs() + self(up).abs() + slopes.abs() * (1 + low.abs() + up.abs()))
        least = self(touched) - slopes * touched - rounding
        least[-1] = torch.where(is_wide, -math.inf, least[-1])  # the chord touches at a point that is not known
        most = torch.maximum(self(low) - slopes * low, self(up) - slopes * up) + rounding
        return slopes, least, most


@dataclass(frozen=True, slots=True)
class Staircase(Smooth):
    """floor(z + offset), bounded and split like a smooth activation, or replaced by a sum of jumps, see `Network.with_jumps`."""

    offset: float

    def slopes(self, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `Smooth.slopes`: extrema are at the first and the last jump, or at the ends."""
        bottom, top = (low + self.offset).ceil() - 1, (up + self.offset).floor()  # at a jump it may take both values
        first, last = bottom + 1 - self.offset, top - self.offset
        chord = (top - bottom) / (up - low).clamp(min=1e-12)
        to_first, from_last = 1 / (first - low).clamp(min=1e-6), 1 / (up - last).clamp(min=1e-6)
        zeros = torch.zeros_like(low)
        slopes = torch.stack([zeros, chord, zeros + 1, to_first, from_last])
        least, most = top - slopes * up, bottom - slopes * low
        has_jump = top > bottom
        for height, jump in ((bottom + 1, first), (top, last)):
            above = height - slopes * jump
            least = torch.where(has_jump, torch.minimum(least, above - 1), least)
            most = torch.where(has_jump, torch.maximum(most, above), most)
        return slopes, least, most


@dataclass(frozen=True, slots=True)
class Observed:
    """Not an activation: its input is bounded as theirs are, and its output is used nowhere."""

    def __call__(self, z: Tensor) -> Tensor:
        """Its input."""
        return z


Activation = Kink | Jump | Smooth | Observed

_PART = 4096  # intervals whose grids are computed together


class Lines(NamedTuple):
    """Bounds of a smooth activation: low z + low_offset <= f(z) <= up z + up_offset; each of one shape."""

    low: Tensor
    low_offset: Tensor
    up: Tensor
    up_offset: Tensor


@dataclass(frozen=True, slots=True)
class Jumps:
    """Values of the columns that jump or are smooth, beside those of `Kinks`.

    low_offset: (m, C), added to the line from below. error: (1, C), by how much the input of a jump may be off. which, smooth: bool
    (1, C), the columns that jump, and those of smooth activations.
    """

    low_offset: Tensor
    error: Tensor
    which: Tensor
    smooth: Tensor


class Kinks(NamedTuple):
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
    jump = (slope, on + open_ + error * slope, torch.zeros_like(slope), rise, open_)
    low_offset = torch.where(which, on - error * rise, 0.0)
    jumps = Jumps(low_offset, error, which, torch.zeros_like(which))
    return Kinks._make([*(torch.where(which, *both) for both in zip(jump, relaxed[:5], strict=True)), jumps])


def smooth_lines(smooth: Smooth, low: Tensor, up: Tensor, error: Tensor | float = 0.0) -> Lines:
    """Return lines that bound a smooth activation over [low, up], of one shape: of a few slopes the one tightest in the middle.

    For a slope s the offset is the extremum of f(z) - s z on a grid of step h. It is corrected by curvature h^2 / 8 + bend h / 4, the
    most that f can rise or fall between two grid points. So the lines are bounds, not estimates.

    Args:
        smooth: The activation.
        low: float64, lower ends of the intervals.
        up: float64, upper ends.
        error: By how much the input may be off beyond its interval, at least 0; of a shape that fits `low`.
    """
    ends = ((low - error).flatten().split(_PART), (up + error).flatten().split(_PART))
    parts = [_tightest(least, most, *smooth.slopes(least, most)) for least, most in zip(*ends, strict=True)]
    lower_slope, lower, upper_slope, upper = (torch.cat(line).view(low.shape) for line in zip(*parts, strict=True))
    return Lines(lower_slope, lower - lower_slope.abs() * error, upper_slope, upper + upper_slope.abs() * error)


def _tightest(
    low: Tensor, up: Tensor, slope: Tensor, floor: Tensor, ceiling: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `Lines` for vectors of intervals, of slopes and extrema as `Smooth.slopes` returns them."""
    middle = (low + up) / 2
    below, above = (slope * middle + floor).argmax(0)[None], (slope * middle + ceiling).argmin(0)[None]
    low_slope, low_offset, up_slope, up_offset = (
        of.gather(0, at)[0] for of, at in ((slope, below), (floor, below), (slope, above), (ceiling, above))
    )
    return low_slope, low_offset, up_slope, up_offset


# A split smooth neuron carries the number of its cell: 0 the whole interval, its halves 2 and 3, those of cell k 2 k and 2 k + 1.
LAST_SPLIT = 64  # the first cell that is not split: its halves would not fit in int8


def cells(low: Tensor, up: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of the cells `code` of the intervals [low, up], float64; neighbours share an end bit for bit."""
    count = 2.0 ** code.clamp(min=1).double().log2().floor()
    start = (code.clamp(min=1) - count) / count
    end = start + 1 / count
    return low * (1 - start) + up * start, low * (1 - end) + up * end


def with_smooth(relaxed: Kinks, layers: Sequence[tuple[slice, Lines, Tensor]]) -> Kinks:
    """Return `relaxed`, (m, C), with the lines of smooth layers at their columns.

    Args:
        relaxed: The bounds of all columns.
        layers: Of each smooth layer its columns, its lines (m, U) or (1, U), and the cells of its neurons, int8 (m, U).
    """
    jumps = relaxed.jumps
    low_offset = torch.zeros_like(relaxed.up) if jumps is None else jumps.low_offset
    rows = (torch.broadcast_shapes(relaxed.up.shape[:1], *(lines.up.shape[:1] for _, lines, _ in layers))[0], -1)
    up, offset, base, rise, open_, low_offset = (t.expand(rows).clone() for t in (*relaxed[:5], low_offset))
    no_column = torch.zeros_like(up[:1], dtype=torch.bool)
    smooth = no_column.clone() if jumps is None else jumps.smooth.clone()
    for at, lines, code in layers:
        for into, line in zip((base, low_offset, up, offset), lines, strict=True):
            into[:, at] = line
        rise[:, at] = 0.0
        open_[:, at] = (code < LAST_SPLIT).to(open_) if len(open_) == len(code) else 1.0
        open_[:, at] *= (lines.low != lines.up) | (lines.low_offset != lines.up_offset)  # a tread is exact
        smooth[:, at] = True
    error, which = (up[:1] * 0, no_column) if jumps is None else (jumps.error, jumps.which)
    return Kinks(up, offset, base, rise, open_, Jumps(low_offset, error, which, smooth))
