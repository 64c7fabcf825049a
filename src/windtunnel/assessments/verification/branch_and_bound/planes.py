"""Upper bounds of a ReLU as a plane over all inputs of its layer, where a chord is one over their weighted sum alone.

Let z = w x + b with x in a box and z in [l, u]. For any vector g and any numbers mu, nu

    relu(z) <= g x + max(max(-mu l, 0) + mu b + max over the box of (mu w - g) x,
                         max(nu u, 0) + (1 - nu) b + max over the box of ((1 - nu) w - g) x),

the first of the two where z <= 0 (relu(z) = 0 and mu z <= max(mu l, 0) there, for both signs of mu), the second where z >= 0. The
chord is g = s w, mu = s, nu = 1 - s with s = u / (u - l). So all planes are valid, and the best are found by ascent from the
chord, for each linear function that is bounded: what a chord loses at a corner of the box, a plane need not.
Sources: Anderson et al. 2020 (arXiv 1811.01988), Tjandraatmadja et al. 2020 (arXiv 2006.14076), whose inequalities these contain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.adam import Adam

if TYPE_CHECKING:
    from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows

_LARGEST = 2**20  # numbers in the planes of one layer for one linear function
_COPIES = 8  # of all planes, while they are improved
# Measured on an MLP of 4 layers of 256: 50 steps close as much of a root's gap as 160 at a tenth of the rate that decays by 0.985.
_RATE, _DECAY = 0.05, 0.96
_TRIAL, _GAIN = 25, 0.02  # steps after which the bounds must have gained that share of what they were
_BLUR = 0.005  # of a unit's range: offsets so near to each other count as equal in the gradient, which would jump between them


@dataclass(frozen=True, slots=True)
class Plane:
    """Of one layer's U columns, for Q linear functions. source: the leaf that is its input.

    weights: float32 (Q, U, n); offset: float64 (Q, U); the output of a column is at most weights x + offset.
    """

    source: int
    weights: Tensor
    offset: Tensor

    def carried(self, a: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """What coefficients a (m, U) of the outputs give: (m, n) of the source, (m,) constants; which: (m,) of the Q."""
        found = a.new_empty(len(a), self.weights.shape[2])
        for q, at in _groups(which):
            found[at] = a[at] @ self.weights[q].to(a)
        return found, (a * self.offset[which].to(a)).sum(1)

    def value(self, x: Tensor, which: Tensor) -> Tensor:
        """The planes (m, U) at the source's outputs x (m, n)."""
        found = x.new_empty(len(x), self.weights.shape[1])
        for q, at in _groups(which):
            found[at] = x[at] @ self.weights[q].to(x).T
        return found + self.offset[which].to(x)


def _groups(which: Tensor) -> list[tuple[int, Tensor]]:
    return [(q, (which == q).nonzero().flatten()) for q in which.unique().tolist()]


class _Fitted:
    """The planes of one layer while they are improved; every tensor but w and b is of the Q linear functions."""

    def __init__(self, bounded: Bounded, j: int, source: int, w: Tensor, b: Tensor, sample: Tensor) -> None:
        low, up = bounded.at_columns(j, sample)
        middle, radius = bounded.box(source, sample)
        self.source = source
        self._exact = (w, b, low, up, middle, radius)
        self._w, self._b, self._low, self._up, self._middle, self._radius = (t.float() for t in self._exact)
        slope = self._up / (self._up - self._low)
        self.g, self.mu, self.nu = slope[:, :, None] * self._w, slope, 1 - slope
        self._taken = (self._w != 0).float()  # what a unit does not see has no say in its plane
        self._size = self._w.abs().sum(1, keepdim=True) / self._taken.sum(1, keepdim=True).clamp(min=1)
        self._adam = [Adam.of(t, _RATE, _DECAY) for t in (self.g, self.mu, self.nu)]
        self._best = (self.g.clone(), self.mu.clone(), self.nu.clone())

    def plane(self) -> Plane:
        """The planes of now, for the search for better ones."""
        found, self._corner, self._ends = self._offsets(self.g, self.mu, self.nu, *self._parts())
        return Plane(self.source, self.g, found)

    def keep(self, better: Tensor) -> None:
        """The planes of now are the best so far of the functions `better`."""
        for best, now in zip(self._best, (self.g, self.mu, self.nu), strict=True):
            best[better] = now[better]

    def best(self) -> Plane:
        """The best planes, their offsets in float64."""
        g, mu, nu = (t.double() for t in self._best)
        return Plane(self.source, self._best[0], self._offsets(g, mu, nu, *self._exact)[0])

    def step(self, negative: Tensor, x: Tensor) -> None:
        """Ascend, given the coefficients of the outputs (Q, U), none positive, and the source's outputs (Q, n)."""
        slope_g = negative[:, :, None] * (x[:, None, :] - self._corner) * self._taken
        slope_mu, slope_nu = (negative * end for end in self._ends)
        self.g = self._adam[0].step(self.g / self._size, slope_g) * self._size
        self.mu = self._adam[1].step(self.mu, slope_mu)
        self.nu = self._adam[2].step(self.nu, slope_nu)

    def _parts(self) -> tuple[Tensor, ...]:
        return self._w, self._b, self._low, self._up, self._middle, self._radius

    @staticmethod
    def _offsets(
        g: Tensor, mu: Tensor, nu: Tensor, w: Tensor, b: Tensor, low: Tensor, up: Tensor, middle: Tensor, radius: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """(offsets, the corners (Q, U, n) that attain them, their derivatives by mu and nu, where the first case does)."""
        middle, radius = middle[:, None, :], radius[:, None, :]
        cases = []
        for slope, rest, end in ((mu, mu, -low), (nu, 1 - nu, up)):
            over = rest[:, :, None] * w - g
            corner = torch.addcmul(middle, radius, over.sign())
            value = (slope * end).clamp(min=0) + rest * b + (over * corner).sum(2)
            cases.append((value, corner, end * (slope > 0)))
        (one, at_one, end_one), (two, at_two, end_two) = cases
        first = torch.sigmoid((one - two) / (_BLUR * (up - low)))
        corner = torch.lerp(at_two, at_one, first[:, :, None])
        ends = (first * (end_one + (at_one * w).sum(2) + b), (1 - first) * (end_two - (at_two * w).sum(2) - b))
        return torch.maximum(one, two), corner, ends


def with_planes(bounded: Bounded, rows: Rows, iterations: int, memory: int) -> Rows:
    """Undivided rows, each a linear function of its own, with planes and the slopes alpha that go with them.

    As they are where no layer allows for planes, all of them together take more than `memory` bytes, or the first steps gain
    next to nothing, as on convolutional networks: planes make every bound after them slower.
    """
    fitted, size = {}, 0
    for j in range(rows.start):
        affine = bounded.affine(j, _LARGEST)
        if affine is None:
            continue
        size += len(rows) * affine[1].numel() * _COPIES * 4
        if size > memory:
            return rows
        fitted[j] = _Fitted(bounded, j, *affine, rows.sample)
    if not fitted:
        return rows
    which = torch.arange(len(rows), device=rows.spec.device)
    best = torch.full((len(rows),), -torch.inf, device=which.device)
    alpha, kept, relaxation = rows.alpha, rows.alpha.clone(), bounded.relaxation(rows, torch.float32)
    slopes, first = Adam.of(alpha, _RATE, _DECAY), best
    for step in range(iterations + 1):
        planes = {j: layer.plane() for j, layer in fitted.items()}
        part = replace(rows, alpha=alpha, planes=planes, plane=which)
        back = bounded.backward(part, relaxation, torch.float32)
        value, x = bounded.region.minimum(back.inputs, rows.sample)
        better = value + back.constant > best
        best = torch.where(better, value + back.constant, best)
        first = best if step == 0 else first
        if step == _TRIAL and not bool((best - first > _GAIN * first.abs()).any()):
            return rows
        kept[better] = alpha[better]
        for layer in fitted.values():
            layer.keep(better)
        if step == iterations:
            break
        met, _, leaves = bounded.forward(x, part, relaxation, back)
        a = back.coefficients
        gradient = a.clamp(min=0) * relaxation.kinks.rise * met
        alpha = slopes.step(alpha, gradient).clamp_(0, 1)
        for j, layer in fitted.items():
            layer.step(a[:, bounded.slices[j]].clamp(max=0), leaves[layer.source])
    return replace(rows, alpha=kept, planes={j: layer.best() for j, layer in fitted.items()}, plane=which)
