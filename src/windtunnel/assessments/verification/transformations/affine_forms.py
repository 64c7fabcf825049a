"""Sets of values that are affine in a few symbols, carried forwards through a network.

A form is centre + sum of slope_k e_k + an error of at most `radius`, for all e in [-1, 1]^P. The symbols are the parameters of a
transformation, so that a network is bounded as a function of them: what is left to the radius is the curvature alone, and
vanishes as a box of parameters is split. Source: zonotopes, Singh et al. 2018 (DeepZ), with the errors gathered in an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.transformations.windows import OUTSIDE, Window, pair_of


@dataclass(frozen=True, slots=True)
class AffineForm:
    """B sets of values. centre, radius: (B, ...); slopes: (B, P, ...)."""

    centre: Tensor
    slopes: Tensor
    radius: Tensor

    @property
    def reach(self) -> Tensor:
        """Largest distance of a value from the centre, (B, ...)."""
        return self.slopes.abs().sum(1) + self.radius

    def linear(
        self, apply: Callable[[Tensor], Tensor], absolute: Callable[[Tensor], Tensor], offset: Tensor | float
    ) -> AffineForm:
        """Return the form after a linear map, its absolute values for the radius, and an offset."""
        slopes = apply(self.slopes.flatten(0, 1))
        return AffineForm(
            apply(self.centre) + offset, slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]), absolute(self.radius)
        )

    def plus(self, other: AffineForm, sign: float = 1.0) -> AffineForm:
        """Return the sum of two forms in the same symbols, or their difference."""
        return AffineForm(
            self.centre + sign * other.centre, self.slopes + sign * other.slopes, self.radius + other.radius
        )

    @classmethod
    def joined(cls, forms: Sequence[AffineForm], dim: int = 0) -> AffineForm:
        """Return forms in the same symbols, concatenated along dimension `dim` of their values (B, ...)."""
        behind = dim + 1 if dim > 0 else dim
        return cls(
            torch.cat([form.centre for form in forms], dim),
            torch.cat([form.slopes for form in forms], behind),
            torch.cat([form.radius for form in forms], dim),
        )

    def scaled(self, symbol: int, middle: Tensor, slope: Tensor, error: Tensor) -> AffineForm:
        """Return the form times middle + slope e_symbol, known to within `error`; each (B,)."""
        middle, slope, error = (t.view(-1, *[1] * (self.centre.ndim - 1)) for t in (middle, slope, error))
        slopes = self.slopes * middle[:, None]
        slopes[:, symbol] = slopes[:, symbol] + self.centre * slope
        rest = (slope.abs() + error) * self.reach + error * self.centre.abs()
        return AffineForm(self.centre * middle, slopes, self.radius * middle.abs() + rest)

    def cropped(self, window: Window, other: Window, fill: float) -> AffineForm:
        """Return the values in another window; outside of `window` they are clean, outside of the layer `fill`."""
        slopes = window.crop(self.slopes.flatten(0, 1), other, None)
        return AffineForm(
            window.crop(self.centre, other, fill),
            slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]),
            window.crop(self.radius, other, None),
        )

    def relaxed(self, relaxation: FormRelaxation) -> AffineForm:
        """Return the form after a layer that the relaxation encloses."""
        slopes = relaxation.select(self.slopes.flatten(0, 1))
        return AffineForm(
            relaxation.slope * relaxation.select(self.centre) + relaxation.offset,
            slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]) * relaxation.slope[:, None],
            relaxation.slope.abs() * relaxation.select(self.radius) + relaxation.error,
        )

    def relu(self, leak: float = 0.0) -> FormRelaxation:
        """Relax the values x where they are positive, else leak x: the chord where the sign is open."""
        low, high = self.centre - self.reach, self.centre + self.reach
        open_ = (low < 0) & (high > 0)
        chord = (high - leak * low) / (high - low).clamp(min=1e-300)
        slope = torch.where(open_, chord, torch.where(low >= 0, torch.ones_like(low), leak))
        gap = torch.where(open_, (1 - slope) * high, 0.0)  # of the chord over the kink; below it where leak is above 1
        return FormRelaxation(slope, gap / 2, gap.abs() / 2)

    def smooth(self, function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> FormRelaxation:
        """Relax an increasing function whose derivative falls on both sides of 0."""
        low, high = self.centre - self.reach, self.centre + self.reach
        slope = torch.minimum(derivative(low), derivative(high))
        f_low, f_high = function(low), function(high)
        offset, error = (f_low + f_high - slope * (low + high)) / 2, (f_high - f_low - slope * (high - low)) / 2
        return FormRelaxation(slope, offset, error.clamp(min=0))

    def clamped(self) -> AffineForm:
        """Return the form of the values moved into [0, 1]."""
        one_less = self.relaxed(self.relu())
        one_less = AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius)
        one_less = one_less.relaxed(one_less.relu())
        return AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius)

    def max_pool(self, pool: nn.MaxPool2d) -> tuple[FormRelaxation, Tensor, Tensor]:
        """Relax the largest value of each window: the likely winner, or the box of the window; and the ends of that box."""
        symbols = self.slopes.shape[1]
        centre = pool_windows(self.centre, pool, OUTSIDE)  # (B, C, windows, h, w)
        slopes = pool_windows(self.slopes.flatten(0, 1), pool, 0.0)
        slopes = slopes.view(len(centre), symbols, *slopes.shape[1:])
        radius = pool_windows(self.radius, pool, 0.0)
        reach = slopes.abs().sum(1) + radius
        lowest, winner = (centre - reach).max(2, keepdim=True)
        won_slopes = slopes.gather(3, winner[:, None].expand(-1, symbols, -1, -1, -1, -1))
        ahead = (
            centre - centre.gather(2, winner) + (slopes - won_slopes).abs().sum(1) + radius + radius.gather(2, winner)
        )
        gap = ahead.scatter(2, winner, 0.0).amax(2).clamp(min=0)
        highest, lowest = (centre + reach).amax(2), lowest.squeeze(2)
        is_box = highest - lowest < gap
        offset, error = torch.where(is_box, (highest + lowest) / 2, gap / 2), torch.minimum(highest - lowest, gap) / 2
        return FormRelaxation((~is_box).to(gap), offset, error, pool, winner), lowest, highest

    def within(self, low: Tensor, high: Tensor) -> AffineForm:
        """Return the form with the box from `low` to `high` in its place where that is tighter."""
        is_box = (high - low) / 2 < self.radius
        return AffineForm(
            torch.where(is_box, (high + low) / 2, self.centre),
            torch.where(is_box[:, None], 0.0, self.slopes),
            torch.where(is_box, (high - low) / 2, self.radius),
        )


@dataclass(frozen=True, slots=True)
class FormRelaxation:
    """Enclosure of a layer's values: slope * input + offset, to within `error`; each (B, ...).

    Of a max pooling the input is that of the likely `winner` (B, C, 1, h, w) in each window of `pool`.
    """

    slope: Tensor
    offset: Tensor
    error: Tensor
    pool: nn.MaxPool2d | None = None
    winner: Tensor | None = None

    def select(self, values: Tensor) -> Tensor:
        """Return the input of each output; of values (B m, ...), m of each set."""
        if self.pool is None or self.winner is None:
            return values
        winner = self.winner.repeat_interleave(len(values) // len(self.winner), 0)
        return pool_windows(values, self.pool, 0.0).gather(2, winner).squeeze(2)

    def at(self, rows: Tensor) -> FormRelaxation:
        """Return the sets `rows` alone."""
        winner = None if self.winner is None else self.winner[rows]
        return FormRelaxation(self.slope[rows], self.offset[rows], self.error[rows], self.pool, winner)


def pool_windows(values: Tensor, pool: nn.MaxPool2d, outside: float) -> Tensor:
    """Return the values (B, C, k, h, w) of the windows of a max pooling, `outside` beyond the border."""
    (kh, kw), (sh, sw), (ph, pw) = (pair_of(value) for value in (pool.kernel_size, pool.stride, pool.padding))
    padded = nn.functional.pad(values, (pw, pw, ph, ph), value=outside) if ph or pw else values
    h, w = (padded.shape[2] - kh) // sh + 1, (padded.shape[3] - kw) // sw + 1
    parts = [
        padded[:, :, i : i + sh * (h - 1) + 1 : sh, j : j + sw * (w - 1) + 1 : sw] for i in range(kh) for j in range(kw)
    ]
    return torch.stack(parts, 2)
