"""Better linear bounds: multipliers by Adam on their exact gradients, and planes in the place of chords.

The bound of a row is min over x of a linear function that depends on alpha and beta. At its minimiser x the derivatives are
(Danskin's theorem) the coefficient of a unit times the unit's input for alpha, and minus sign times input for beta, the inputs
being those of the network with every activation replaced by its line: one pass backwards, one forwards, no recorded graph.
Source: Wang et al. 2021, beta-CROWN, arXiv 2103.06624.

A plane is an upper bound of an activation over the whole input of the network, where a chord is one over the weighted sum alone.

Of ReLUs that see the input alone: let z = w x + b with x in a box and z in [l, u]. For any g and numbers mu, nu

    relu(z) <= g x + max(max(-mu l, 0) + mu b + max over the box of (mu w - g) x,
                         max(nu u, 0) + (1 - nu) b + max over the box of ((1 - nu) w - g) x),

the first of the two where z <= 0 (relu(z) = 0 and mu z <= max(mu l, 0) there, for both signs of mu), the second where z >= 0. The
chord is g = s w, mu = s, nu = 1 - s with s = u / (u - l). So all planes are valid, and the best are found by ascent from the
chord, for each linear function that is bounded: what a chord loses at a corner of the box, a plane need not.
Sources: Anderson et al. 2020 (arXiv 1811.01988), Tjandraatmadja et al. 2020 (arXiv 2006.14076), whose inequalities these contain.

Of the ReLU of the largest number of a window of max pooling, where the numbers see a small part of the input: of numbers w_k x + b_k,
of which 0 is one with w = 0 and b = 0, the largest is for any g at most

    g x + max over k of (b_k + max over the box of (w_k - g) x).

The line of a window (`maxpool_bounds.py`) is g x with the mean of the w_k by its weights for g, and from there ascent goes on as above.

The rates below were chosen by the measurements in docs/benchmarks/verification.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import Pieces
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, InputBoxes, LinearSpecs, Plane

_NARROW = 1e-3  # of the mean side of a box: the least that is counted
_BLUR = 0.005  # of a unit's range: offsets so near to each other count as equal in the gradient, which would jump between them
_MOMENTUM, _SQUARES = 0.5, 0.9  # Adam's decay rates: lower than usual, because few steps must do


@dataclass(slots=True)
class Adam:
    """Ascent on one tensor of any shape. rate: of the first step; each further one has `decay` of that before it."""

    mean: Tensor
    square: Tensor
    rate: float
    decay: float
    steps: int = 0

    @classmethod
    def of(cls, values: Tensor, rate: float, decay: float) -> Adam:
        """Before the first step on `values`."""
        return cls(torch.zeros_like(values), torch.zeros_like(values), rate, decay)

    def step(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return the values after one more step."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - _MOMENTUM)
        self.square.mul_(_SQUARES).addcmul_(gradient, gradient, value=1 - _SQUARES)
        rate = self.rate * (self.decay ** (self.steps - 1) / (1 - _MOMENTUM**self.steps))
        # Not sqrt, which takes six times as long where there are zeros.
        inverse = self.square.div(1 - _SQUARES**self.steps).add_(1e-24).rsqrt_()
        return values.addcmul(self.mean, inverse, value=rate)


class _FittedPlanes:
    """The planes of one layer while they are improved."""

    def __init__(self, start: tuple[Tensor, ...], receptive: Tensor, rate: float, decay: float) -> None:
        """start: the weights (Q, K, P), and what else is improved. receptive: bool, (Q, K, P) or (K, P), of which inputs the unit depends.

        What a unit does not see has no say in its plane: any weight there were valid, but of units that are carried together
        (`grouped_crown.py`) it would count for another one, which sees it.
        """
        self._now = start
        self._best = tuple(t.clone() for t in start)
        self._adam = [Adam.of(t, rate, decay) for t in start]
        self._outside = None if bool(receptive.all()) else ~receptive

    def _masked(self, by_weights: Tensor) -> Tensor:
        """Return the derivative by the weights, 0 outside the receptive field."""
        return by_weights if self._outside is None else by_weights.masked_fill_(self._outside, 0)

    def keep(self, better: Tensor) -> None:
        """Record the current planes as the best so far of the functions `better`."""
        for best, now in zip(self._best, self._now, strict=True):
            best[better] = now[better]


def widened_box(middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Widen the narrowest sides of an input box, so that weights measured in units of it stay of one size."""
    return middle, radius.maximum(_NARROW * radius.mean(1, keepdim=True))


_RELU_RATES = (0.1, 0.95)  # rate and decay of planes above ReLUs


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
        first = torch.sigmoid((first_case - second_case) / (_BLUR * (self.up - self.low)))
        ends = (first * (end_one + rest_one), (1 - first) * (end_two - rest_two))
        return torch.maximum(first_case, second_case), torch.lerp(at_two, at_one, first[:, :, None]), ends


class OfReLUs(_FittedPlanes):
    """Planes above some ReLUs of a layer."""

    def __init__(self, bounded: Bounded, j: int, rows: LinearSpecs, lost: Tensor, most: int) -> None:
        """lost: (Q, U), what each chord costs; the `most` dearest columns get planes."""
        affine = bounded.affine(j)
        assert affine is not None
        w, b = affine
        middle, radius = widened_box(*bounded.box(0, rows.sample))
        self._columns = lost.topk(min(most, lost.shape[1]), 1).indices
        units, sample = bounded.units[j][self._columns], rows.sample[:, None]
        low, up = bounded.low[j][sample, units], bounded.up[j][sample, units]
        w = w[self._columns]
        at_middle = b[self._columns] + (w * middle[:, None]).sum(2)
        w = w * radius[:, None]
        is_visible = w != 0
        unit = (w.abs().sum(2) / is_visible.sum(2).clamp(min=1)).clamp(min=1e-30)
        self._units = _PlaneNeurons(w / unit[:, :, None], at_middle, low, up, InputBoxes(middle, radius, unit))
        self._single = self._units.single()
        slope = self._single.up / (self._single.up - self._single.low)
        start = (slope[:, :, None] * self._single.w, slope, 1 - slope)  # the weights, mu and nu
        super().__init__(start, is_visible, *_RELU_RATES)

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


_WINDOW_RATES, _SLOPE_RATES = (1.0, 0.85), (0.2, 0.9)  # of planes above windows, of the slopes beside them


class OfLargest(_FittedPlanes):
    """Planes above the ReLUs of the largest numbers of windows, all of a layer."""

    def __init__(self, bounded: Bounded, rows: LinearSpecs, pieces: Pieces) -> None:
        middle, radius = widened_box(*bounded.box(0, rows.sample))
        numbers = pieces.numbers
        self._receptive, self._inputs = numbers.receptive, middle.shape[1]
        self._middle, self._radius = middle[:, numbers.receptive], radius[:, numbers.receptive]
        w = numbers.w * self._radius[:, :, None]
        self._unit = w.abs().mean((2, 3)).clamp(min=1e-30)
        w = w / self._unit[:, :, None, None]
        b = numbers.b + (numbers.w * self._middle[:, :, None]).sum(3)
        weights, out, spread = (t[rows.sample] for t in (pieces.weights, pieces.out, pieces.spread))
        self._pieces, self._out, self._blur = (w, b), out, (_BLUR * spread).float()
        self._single = (w.float(), b.float())
        self._box = InputBoxes(middle.float(), radius.float(), self._unit.float())
        self._columns = torch.arange(len(numbers.receptive), device=middle.device).expand(len(rows), -1)
        super().__init__(((weights[..., None] * w).sum(2).float(),), (numbers.w != 0).any(1), *_WINDOW_RATES)

    def plane(self) -> Plane:
        """Return the planes of now, for the search for better ones."""
        value, self._over = self._values(self._now[0], *self._single, self._box.unit)
        self._first = torch.softmax(value / self._blur[..., None], 2)
        return Plane(self._columns, self._now[0], value.amax(2), self._box, self._receptive, self._inputs)

    def best(self) -> Plane:
        """Return the best planes, their offsets in float64, for inputs as they are."""
        unit = self._unit[..., None]
        weights = (self._best[0].double() * unit / self._radius).float()
        exact = weights.double()
        value, _ = self._values(exact * self._radius / unit, *self._pieces, self._unit)
        offset = value.amax(2) - (exact * self._middle).sum(2)
        return Plane(self._columns, weights, offset, None, self._receptive, self._inputs)

    def step(self, negative: Tensor, x: Tensor) -> None:
        """Ascend, given the coefficients of the columns (Q, U), none positive, and where the inputs lie in the box (Q, d)."""
        corner = (self._first[..., None] * self._over.sign_()).sum(2)
        by_weights = self._masked(negative[..., None] * (x[:, self._receptive] - corner))
        self._now = (self._adam[0].step(self._now[0], by_weights),)

    def _values(self, g: Tensor, w: Tensor, b: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """(Q, U, K): by how much each number exceeds the plane at most, with what is left of its weights (Q, U, K, P)."""
        over = w - g[:, :, None]
        return (b + unit[..., None] * over.abs().sum(3)).masked_fill(self._out, -torch.inf), over


_COPIES = 8  # of all planes, while they are improved
_TRIAL, _GAIN = 25, 0.02  # steps after which the bounds must have gained that share of what they were
_LAST = 5  # iterates among which the best is looked for: their rate falls, so that earlier ones are worse


def with_planes(bounded: Bounded, rows: LinearSpecs, iterations: int, most: int) -> LinearSpecs:
    """Undivided rows, each a linear function of its own, with planes and the slopes alpha that go with them.

    most: columns of each layer that get planes, those whose chords cost the function most.
    As they are where no layer allows for planes, all of them together take more than the memory allowed, or the first steps gain
    next to nothing, as on convolutional networks: planes make every bound after them slower.
    """
    weights = {j: affine[0] for j in range(rows.start) if most and (affine := bounded.affine(j))}
    windows = {j: pieces for j in range(rows.start) if (pieces := bounded.pieces(j))}
    numbers = sum(min(most, len(w)) * w.shape[1] for w in weights.values())
    numbers += sum(p.numbers.w.numel() for p in windows.values())
    if not (weights or windows) or _COPIES * 4 * len(rows) * numbers > bounded.memory:
        return rows
    relaxation = bounded.relaxation(rows, torch.float32)
    k = relaxation.kinks
    fitted: dict[int, OfReLUs | OfLargest] = {j: OfLargest(bounded, rows, pieces) for j, pieces in windows.items()}
    if weights:
        lost = -bounded.backward(rows, relaxation, torch.float32).coefficients.clamp(max=0) * k.offset * k.open
        fitted |= {j: OfReLUs(bounded, j, rows, lost[:, bounded.slices[j]], most) for j in weights}
    which = torch.arange(len(rows), device=rows.spec.device)
    best = torch.full((len(rows),), -torch.inf, device=which.device)
    alpha, best_alpha = rows.alpha, rows.alpha.clone()
    slopes, first, reached = Adam.of(alpha, *(_SLOPE_RATES if windows else _RELU_RATES)), best, best
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
            best_alpha[better] = alpha[better]
            for layer in fitted.values():
                layer.keep(better)
        if step == iterations:
            break
        inputs, _ = bounded.forward(x, part, relaxation, back)
        a = back.coefficients
        alpha = slopes.step(alpha, a.clamp(min=0) * k.rise * inputs).clamp_(0, 1)
        for j, layer in fitted.items():
            layer.step(a[:, bounded.slices[j]].clamp(max=0), planes[j].inside(x))
    return replace(rows, alpha=best_alpha, planes={j: layer.best() for j, layer in fitted.items()}, plane=which)


_RATE, _DECAY = 0.1, 0.97
_BETA_RATE = 2.0  # of multipliers, in units of the mean coefficient: a split that matters needs one many times as large


def optimise(bounded: Bounded, rows: LinearSpecs, iterations: int, stop: Tensor | float) -> tuple[Tensor, LinearSpecs]:
    """(float32 bounds (m,), the rows with the multipliers that gave them), after at most `iterations` steps.

    Each row keeps its best iterate, the first of which is what it came with. A row whose bound exceeds `stop` is done; the
    batch shrinks when half of it is.
    """
    best = torch.full((len(rows),), -torch.inf, device=rows.spec.device)
    alpha, beta = rows.alpha.float().clone(), rows.beta.float().clone()
    limit = torch.as_tensor(stop, dtype=torch.float32, device=best.device).expand(len(rows))
    remaining = torch.arange(len(rows), device=best.device)
    while len(remaining) and iterations >= 0:
        remaining, iterations = _ascend(bounded, rows, remaining, iterations, limit, best, alpha, beta)
    return best, replace(rows, alpha=alpha, beta=beta)


def improved(bounded: Bounded, rows: LinearSpecs, iterations: int, stop: float) -> LinearSpecs:
    """Undivided rows with better slopes; with planes too where windows of max pooling can have them, which help inner bounds most."""
    if len(rows) and any(bounded.pieces(j) for j in range(rows.start)):
        bent = with_planes(bounded, rows, iterations, 0)
        if bent.planes:
            return bent
    return optimise(bounded, rows, iterations, stop)[1]


def _ascend(
    bounded: Bounded,
    rows: LinearSpecs,
    at: Tensor,
    iterations: int,
    limit: Tensor,
    best: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, int]:
    """Improve the rows at `at` until half of them are done; (those that are not, the iterations left). Writes the others."""
    part = replace(rows, alpha=alpha, beta=beta).at(at)
    relaxation = bounded.relaxation(part, torch.float32)
    rise = relaxation.kinks.rise
    columns = torch.cat([split[1] for split in relaxation.split if split is not None] or [at[:0]])
    signs = relaxation.sides.index_select(1, columns)
    thresholds = 0.0 if relaxation.thresholds is None else relaxation.thresholds.index_select(1, columns)
    slopes, multipliers = Adam.of(part.alpha, _RATE, _DECAY), Adam.of(signs, _BETA_RATE, _DECAY)
    size: Tensor | None = None
    while True:
        back = bounded.backward(part, relaxation, torch.float32)
        value, x = bounded.region.minimum(back.inputs, part.sample)
        value = value + back.constant
        better = (value > best[at]).nonzero().flatten()
        chosen = at[better]
        best[chosen] = value[better]
        alpha.index_copy_(0, chosen, part.alpha.index_select(0, better))
        beta.index_copy_(0, chosen, part.beta.index_select(0, better))
        iterations -= 1
        if iterations < 0 or not part.alpha.shape[1]:
            return at[:0], -1
        remaining = best[at] <= limit[at]
        if 2 * int(remaining.sum()) <= len(at):
            return at[remaining], iterations
        inputs, _ = bounded.forward(x, part, relaxation, back)
        stepped = slopes.step(part.alpha, back.coefficients.clamp(min=0) * rise * inputs).clamp_(0, 1)
        moved = part.beta
        if len(columns):
            old_beta = part.beta.index_select(1, columns)
            if size is None:  # multipliers are of the size of the coefficients: forms of one function agree
                size = back.coefficients.abs().mean(1, keepdim=True).clamp(min=1e-12).maximum(old_beta)
            uphill = -signs * (inputs.index_select(1, columns) - thresholds) * size
            stepping = multipliers.step(old_beta / size, uphill).clamp_(min=0) * size
            moved = part.beta.index_copy(1, columns, stepping)
        part = replace(part, alpha=stepped, beta=moved)
