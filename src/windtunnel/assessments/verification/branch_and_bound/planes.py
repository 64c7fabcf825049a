"""Upper bounds of a ReLU as a plane over the whole input of the network, where a chord is one over the weighted sum alone.

Let z = w x + b with x in a box and z in [l, u], in the first layer or another that sees the input alone. For any g and numbers mu, nu

    relu(z) <= g x + max(max(-mu l, 0) + mu b + max over the box of (mu w - g) x,
                         max(nu u, 0) + (1 - nu) b + max over the box of ((1 - nu) w - g) x),

the first of the two where z <= 0 (relu(z) = 0 and mu z <= max(mu l, 0) there, for both signs of mu), the second where z >= 0. The
chord is g = s w, mu = s, nu = 1 - s with s = u / (u - l). So all planes are valid, and the best are found by ascent from the
chord, for each linear function that is bounded: what a chord loses at a corner of the box, a plane need not. Planes over the outputs of
activations would be valid too; on MLPs of 4 and 6 layers of 256 bounds are worse with them, and slower.
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

_COPIES = 8  # of all planes, while they are improved
# Measured on an MLP of 4 layers of 256 (epsilon 0.05): 40 steps for each of its inner bounds bring a margin from -10.3 to -1.6, 50 steps of
# 0.05 and 0.96 to -2.0, 30 of 0.2 and 0.90 to -3.8; without the normalisation by Adam, steps of one size bring a third less.
_RATE, _DECAY = 0.1, 0.95
_TRIAL, _GAIN = 25, 0.02  # steps after which the bounds must have gained that share of what they were
_NARROW = 1e-3  # of the mean side of a box: the least that is counted
_LAST = 5  # iterates among which the best is looked for: their rate falls, so that earlier ones are worse
_BLUR = 0.005  # of a unit's range: offsets so near to each other count as equal in the gradient, which would jump between them


@dataclass(frozen=True, slots=True)
class Box:
    """What the input can be, for Q linear functions: middle, radius (Q, d); and the unit (Q, K) of the weights of K columns."""

    middle: Tensor
    radius: Tensor
    unit: Tensor


@dataclass(frozen=True, slots=True)
class Plane:
    """Of some columns of one layer, K for each of Q linear functions; the others have their chords.

    columns: int64 (Q, K), places among the layer's columns. weights: float32 (Q, K, d); offset: float64 (Q, K). A column is at most
    <weights, x> + offset at the input x. box: while planes are fitted weights are in its units, and x is measured in it.
    """

    columns: Tensor
    weights: Tensor
    offset: Tensor
    box: Box | None = None

    def carried(self, a: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of coefficients a (m, U) of the columns: (a of those without a plane, (m, d) of the input, (m,) constants).

        which: (m,), of which of the Q functions each row is.
        """
        columns = self._of(self.columns, which)
        some = a.gather(1, columns)
        constant = (some * self._of(self.offset, which).to(a)).sum(1)
        if self.box is None:
            found = self._each(some, which, transposed=False)
        else:
            found = self._each(some * self.box.unit, which, transposed=False) / self.box.radius
            constant = constant - (found * self.box.middle).sum(1)
        return a.scatter(1, columns, 0.0), found, constant

    def bent(self, lines: Tensor, x: Tensor, where: Tensor, which: Tensor) -> Tensor:
        """The lines (m, U) that columns take, those with a plane at the inputs x (m, d) where `where` is 1."""
        columns = self._of(self.columns, which)
        value = self._each(self.inside(x), which, transposed=True)
        value = (value if self.box is None else value * self.box.unit) + self._of(self.offset, which).to(x)
        return lines.scatter(1, columns, torch.lerp(lines.gather(1, columns), value, where.gather(1, columns)))

    def inside(self, x: Tensor) -> Tensor:
        """Inputs x (m, d), in [-1, 1] where they are measured in a box."""
        return x if self.box is None else (x - self.box.middle) / self.box.radius

    @staticmethod
    def _of(values: Tensor, which: Tensor) -> Tensor:
        """Those of each row, of what there is of each function."""
        return values.expand(len(which), -1) if len(values) == 1 else values[which]

    def _each(self, values: Tensor, which: Tensor, *, transposed: bool) -> Tensor:
        """Each row of values times the weights of its function, or times their transposes."""

        def turned(some: Tensor) -> Tensor:  # converted last: all of them in float64 would be much to copy
            return (some.mT if transposed else some).to(values)

        present, count = which.unique_consecutive(return_counts=True)
        if len(present) == 1:
            return values @ turned(self.weights[int(present[0])])
        if len(present) <= len(self.weights) and bool((count == count[0]).all()):
            # As of inner units, each a function with a few rows that lie side by side.
            everyone = torch.equal(present, torch.arange(len(self.weights), device=present.device))
            chosen = self.weights if everyone else self.weights.index_select(0, present)
            return torch.bmm(values.view(len(present), -1, values.shape[1]), turned(chosen)).flatten(0, 1)
        found = values.new_empty(len(values), self.weights.shape[1 if transposed else 2])
        for q in which.unique().tolist():
            at = (which == q).nonzero().flatten()
            found[at] = values[at] @ turned(self.weights[q])
        return found


@dataclass(frozen=True, slots=True)
class _Units:
    """The columns of a layer that get planes, for Q functions: z = unit <w, x> + b in [low, up]; w (Q, K, d), else (Q, K); x in the box."""

    w: Tensor
    b: Tensor
    low: Tensor
    up: Tensor
    box: Box

    def single(self) -> _Units:
        """The same in float32."""
        box = Box(self.box.middle.float(), self.box.radius.float(), self.box.unit.float())
        return _Units(self.w.float(), self.b.float(), self.low.float(), self.up.float(), box)

    def offsets(self, g: Tensor, mu: Tensor, nu: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """(offsets at the middle, the corners (Q, K, d) that attain them, their derivatives by mu and nu, where the first case does)."""
        cases, unit = [], self.box.unit
        for slope, rest, end in ((mu, mu, -self.low), (nu, 1 - nu, self.up)):
            over = (rest[:, :, None] * self.w).sub_(g)
            value = (slope * end).clamp(min=0) + rest * self.b + unit * over.abs().sum(2)
            corner = over.sign_()
            cases.append((value, corner, end * (slope > 0), self.b + unit * (corner * self.w).sum(2)))
        (one, at_one, end_one, rest_one), (two, at_two, end_two, rest_two) = cases
        first = torch.sigmoid((one - two) / (_BLUR * (self.up - self.low)))
        ends = (first * (end_one + rest_one), (1 - first) * (end_two - rest_two))
        return torch.maximum(one, two), torch.lerp(at_two, at_one, first[:, :, None]), ends


class _Fitted:
    """The planes of one layer while they are improved."""

    def __init__(self, bounded: Bounded, j: int, rows: Rows, lost: Tensor, most: int) -> None:
        """lost: (Q, U), what each chord costs; the `most` dearest columns get planes."""
        affine = bounded.affine(j)
        assert affine is not None
        w, b = affine
        middle, radius = bounded.box(0, rows.sample)
        # A wider box is valid too, and weights that are measured in it stay of one size.
        radius = radius.maximum(_NARROW * radius.mean(1, keepdim=True))
        self._columns = lost.topk(min(most, lost.shape[1]), 1).indices
        low, up = (t.gather(1, self._columns) for t in bounded.at_columns(j, rows.sample))
        w = w[self._columns]
        at_middle = b[self._columns] + (w * middle[:, None]).sum(2)
        w = w * radius[:, None]
        seen = w != 0  # what a unit does not see has no say in its plane
        self._unseen = None if bool(seen.all()) else ~seen
        unit = (w.abs().sum(2) / seen.sum(2).clamp(min=1)).clamp(min=1e-30)
        self._units = _Units(w / unit[:, :, None], at_middle, low, up, Box(middle, radius, unit))
        self._single = self._units.single()
        slope = self._single.up / (self._single.up - self._single.low)
        self._now = (slope[:, :, None] * self._single.w, slope, 1 - slope)  # the weights, mu and nu
        self._best = tuple(t.clone() for t in self._now)
        self._adam = [Adam.of(t, _RATE, _DECAY) for t in self._now]

    def plane(self) -> Plane:
        """The planes of now, for the search for better ones."""
        offset, self._corner, self._ends = self._single.offsets(*self._now)
        return Plane(self._columns, self._now[0], offset, self._single.box)

    def keep(self, better: Tensor) -> None:
        """The planes of now are the best so far of the functions `better`."""
        for best, now in zip(self._best, self._now, strict=True):
            best[better] = now[better]

    def best(self) -> Plane:
        """The best planes, their offsets in float64, for inputs as they are."""
        (g, mu, nu), box = (t.double() for t in self._best), self._units.box
        weights = (g * box.unit[:, :, None] / box.radius[:, None]).float()
        exact = weights.double()
        offset = self._units.offsets(exact * box.radius[:, None] / box.unit[:, :, None], mu, nu)[0]
        return Plane(self._columns, weights, offset - (exact * box.middle[:, None]).sum(2))

    def step(self, negative: Tensor, x: Tensor) -> None:
        """Ascend, given the coefficients of the columns (Q, U), none positive, and where the inputs lie in the box (Q, d)."""
        negative = negative.gather(1, self._columns)
        by_weights = self._corner.sub_(x[:, None]).mul_(-negative[:, :, None])
        if self._unseen is not None:
            by_weights.masked_fill_(self._unseen, 0)
        (g, mu, nu), (of_g, of_mu, of_nu) = self._now, self._adam
        self._now = (
            of_g.step(g, by_weights), of_mu.step(mu, negative * self._ends[0]), of_nu.step(nu, negative * self._ends[1])
        )  # fmt: skip


def with_planes(bounded: Bounded, rows: Rows, iterations: int, memory: int, most: int) -> Rows:
    """Undivided rows, each a linear function of its own, with planes and the slopes alpha that go with them.

    most: columns of each layer that get planes, those whose chords cost the function most.
    As they are where no layer allows for planes, all of them together take more than `memory` bytes, or the first steps gain
    next to nothing, as on convolutional networks: planes make every bound after them slower.
    """
    weights = {j: affine[0] for j in range(rows.start) if (affine := bounded.affine(j))}
    numbers = sum(len(rows) * min(most, len(w)) * w.shape[1] for w in weights.values())
    if not weights or _COPIES * 4 * numbers > memory:
        return rows
    relaxation = bounded.relaxation(rows, torch.float32)
    k = relaxation.kinks
    lost = -bounded.backward(rows, relaxation, torch.float32).coefficients.clamp(max=0) * k.offset * k.open
    fitted = {j: _Fitted(bounded, j, rows, lost[:, bounded.slices[j]], most) for j in weights}
    which = torch.arange(len(rows), device=rows.spec.device)
    best = torch.full((len(rows),), -torch.inf, device=which.device)
    alpha, kept = rows.alpha, rows.alpha.clone()
    slopes, first, reached = Adam.of(alpha, _RATE, _DECAY), best, best
    for step in range(iterations + 1):
        planes = {j: layer.plane() for j, layer in fitted.items()}
        part = replace(rows, alpha=alpha, planes=planes, plane=which)
        back = bounded.backward(part, relaxation, torch.float32)
        value, x = bounded.region.minimum(back.inputs, rows.sample)
        value = value + back.constant
        first, reached = (value, value) if step == 0 else (first, torch.maximum(reached, value))
        if step == _TRIAL and not bool((reached - first > _GAIN * first.abs()).any()):
            return rows
        if step == 0 or step > iterations - _LAST:
            better = value > best
            best = torch.where(better, value, best)
            kept[better] = alpha[better]
            for layer in fitted.values():
                layer.keep(better)
        if step == iterations:
            break
        met, _ = bounded.forward(x, part, relaxation, back)
        a = back.coefficients
        alpha = slopes.step(alpha, a.clamp(min=0) * k.rise * met).clamp_(0, 1)
        for j, layer in fitted.items():
            layer.step(a[:, bounded.slices[j]].clamp(max=0), planes[j].inside(x))
    return replace(rows, alpha=kept, planes={j: layer.best() for j, layer in fitted.items()}, plane=which)
