"""Planes above ReLUs that see the input alone.

Let z = w x + b with x in a box and z in [l, u]. For any g and numbers mu, nu

    relu(z) <= g x + max(max(-mu l, 0) + mu b + max over the box of (mu w - g) x,
                         max(nu u, 0) + (1 - nu) b + max over the box of ((1 - nu) w - g) x),

the first of the two where z <= 0 (relu(z) = 0 and mu z <= max(mu l, 0) there, for both signs of mu), the second where z >= 0. The
chord is g = s w, mu = s, nu = 1 - s with s = u / (u - l). So all planes are valid, and the best are found by ascent from the
chord, for each linear function that is bounded: what a chord loses at a corner of the box, a plane need not. Deeper ReLUs could have
planes too, over the outputs of activations, with which MLPs of 4 and 6 layers of 256 are bounded worse; or over the input, from lines
that bound z there, with which a margin of -2.08 becomes -2.02 in twice the time.
Sources: Anderson et al. 2020 (arXiv 1811.01988), Tjandraatmadja et al. 2020 (arXiv 2006.14076), whose inequalities these contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.planes import BLUR, Fitted, InputBoxes, Plane, widened_box

if TYPE_CHECKING:
    from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
    from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs

# Measured on an MLP of 4 layers of 256 (epsilon 0.05): 40 steps for each of its inner bounds bring a margin from -10.3 to -1.6, 50 steps of
# 0.05 and 0.96 to -2.0, 30 of 0.2 and 0.90 to -3.8; without the normalisation by Adam, steps of one size bring a third less.
RATES = (0.1, 0.95)


@dataclass(frozen=True, slots=True)
class _PlaneNeurons:
    """The columns of a layer that get planes, for Q functions: z = unit <w, x> + b in [low, up]; w (Q, K, d), else (Q, K); x in the box."""

    w: Tensor
    b: Tensor
    low: Tensor
    up: Tensor
    box: InputBoxes

    def single(self) -> _PlaneNeurons:
        """Return the same in float32."""
        box = InputBoxes(self.box.middle.float(), self.box.radius.float(), self.box.unit.float())
        return _PlaneNeurons(self.w.float(), self.b.float(), self.low.float(), self.up.float(), box)

    def offsets(self, g: Tensor, mu: Tensor, nu: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """(offsets at the middle, the corners (Q, K, d) that attain them, their derivatives by mu and nu, where the first case does)."""
        cases, unit = [], self.box.unit
        for slope, rest, end in ((mu, mu, -self.low), (nu, 1 - nu, self.up)):
            over = (rest[:, :, None] * self.w).sub_(g)
            value = (slope * end).clamp(min=0) + rest * self.b + unit * over.abs().sum(2)
            corner = over.sign_()
            cases.append((value, corner, end * (slope > 0), self.b + unit * (corner * self.w).sum(2)))
        (first_case, at_one, end_one, rest_one), (second_case, at_two, end_two, rest_two) = cases
        first = torch.sigmoid((first_case - second_case) / (BLUR * (self.up - self.low)))
        ends = (first * (end_one + rest_one), (1 - first) * (end_two - rest_two))
        return torch.maximum(first_case, second_case), torch.lerp(at_two, at_one, first[:, :, None]), ends


class OfReLUs(Fitted):
    """Planes above some ReLUs of a layer."""

    def __init__(self, bounded: Bounded, j: int, rows: LinearSpecs, lost: Tensor, most: int) -> None:
        """lost: (Q, U), what each chord costs; the `most` dearest columns get planes."""
        affine = bounded.affine(j)
        assert affine is not None
        w, b = affine
        middle, radius = widened_box(*bounded.box(0, rows.sample))
        self._columns = lost.topk(min(most, lost.shape[1]), 1).indices
        low, up = (t.gather(1, self._columns) for t in bounded.at_columns(j, rows.sample))
        w = w[self._columns]
        at_middle = b[self._columns] + (w * middle[:, None]).sum(2)
        w = w * radius[:, None]
        is_visible = w != 0
        unit = (w.abs().sum(2) / is_visible.sum(2).clamp(min=1)).clamp(min=1e-30)
        self._units = _PlaneNeurons(w / unit[:, :, None], at_middle, low, up, InputBoxes(middle, radius, unit))
        self._single = self._units.single()
        slope = self._single.up / (self._single.up - self._single.low)
        start = (slope[:, :, None] * self._single.w, slope, 1 - slope)  # the weights, mu and nu
        super().__init__(start, is_visible, *RATES)

    def plane(self) -> Plane:
        """Return the planes of now, for the search for better ones."""
        offset, self._corner, self._ends = self._single.offsets(*self._now)
        return Plane(self._columns, self._now[0], offset, self._single.box)

    def best(self) -> Plane:
        """Return the best planes, their offsets in float64, for inputs as they are."""
        (g, mu, nu), box = (t.double() for t in self._best), self._units.box
        weights = (g * box.unit[:, :, None] / box.radius[:, None]).float()
        exact = weights.double()
        offset = self._units.offsets(exact * box.radius[:, None] / box.unit[:, :, None], mu, nu)[0]
        return Plane(self._columns, weights, offset - (exact * box.middle[:, None]).sum(2))

    def step(self, negative: Tensor, x: Tensor) -> None:
        """Ascend, given the coefficients of the columns (Q, U), none positive, and where the inputs lie in the box (Q, d)."""
        negative = negative.gather(1, self._columns)
        by_weights = self._masked(self._corner.sub_(x[:, None]).mul_(-negative[:, :, None]))
        (g, mu, nu), (of_g, of_mu, of_nu) = self._now, self._adam
        self._now = (
            of_g.step(g, by_weights),
            of_mu.step(mu, negative * self._ends[0]),
            of_nu.step(nu, negative * self._ends[1]),
        )
