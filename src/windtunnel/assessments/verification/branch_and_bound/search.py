"""Best-first branch and bound over the subdomains of many linear functions at once.

The neuron to split is chosen among a few candidates of cheap scores: the one whose two subdomains improve the bound most.
Where no neuron is left to split, the network is affine, and a linear programme decides. It is solved by HiGHS (scipy), but
its word counts for nothing by itself: the dual solution becomes the multipliers beta of one more float64 pass, and the
primal one a candidate for a counter-example.
Sources: BaBSR (Bunel et al. 2020, arXiv 1909.06588), filtered smart branching (De Palma et al. 2021, arXiv 2104.06718).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import (
    BackwardBound,
    Bounded,
    LinearSpecs,
    Relaxation,
)
from windtunnel.core.contracts import Norm

# Of dense networks and of others: steps of a trial; candidates by each score over all layers, beside the best of every layer.
_DENSE, _OTHERS = (3, 2), (0, 0)  # compared in docs/benchmarks/verification.md


def scores(
    bounded: Bounded, rows: LinearSpecs, relaxation: Relaxation, back: BackwardBound, inputs: Tensor, outputs: Tensor
) -> list[Tensor]:
    """Three scores of every column, (m, C) each, -1 where it cannot be split.

    What the offset of the unit's chord costs; BaBSR's estimate; and by how much the unit's line misses the activation at
    the point where the bound is attained, where the units have `inputs` and their lines give `outputs`, (m, C) each.
    """
    k, a = relaxation.kinks, back.coefficients
    least = k.base  # of open units; the others count for nothing
    tape = bounded.network.tape(len(rows), a.dtype)
    bias = torch.cat([tape.node(j)[0].detach().flatten()[bounded.units[j]] for j in range(rows.start)] or [a[0]])
    negative = a.clamp(max=0)
    cost = -negative * k.offset
    estimate = (torch.maximum(bias * (k.up - 1) * a, bias * (k.up - least) * a) - cost).abs()
    values = torch.maximum(inputs, least * inputs)
    if k.jumps is not None:
        values = torch.where(k.jumps.which, (inputs >= 0).to(inputs), values)
        cost, estimate = (torch.where(k.jumps.which, a.abs(), score) for score in (cost, estimate))
        gap = a.abs() * ((k.up - k.base) * inputs + k.offset - k.jumps.low_offset)  # between both lines
        cost, estimate = (torch.where(k.jumps.smooth, gap, score) for score in (cost, estimate))
        for layer, at in zip(bounded.network.layers[: rows.start], bounded.slices, strict=False):
            if isinstance(layer.activation, Smooth):
                values[:, at] = layer.activation(inputs[:, at])
    missed = a * (values - outputs)
    shut = 1 - k.open
    return [score * k.open - shut for score in (cost, estimate, missed.clamp(min=0))]


def candidates(bounded: Bounded, start: int, ranked: list[Tensor], overall: int) -> Tensor:
    """(m, C) bool: the best column of every layer and the `overall` best of all, by each score."""
    chosen = torch.zeros_like(ranked[0], dtype=torch.bool)
    for score in ranked:
        for at in bounded.slices[:start]:
            if at.stop > at.start:
                chosen[:, at].scatter_(1, score[:, at].argmax(1, keepdim=True), value=True)
        chosen.scatter_(1, score.topk(min(overall, score.shape[1]), 1).indices, value=True)
    return chosen & (ranked[0] >= 0)


def children(rows: LinearSpecs, column: Tensor, gain: Tensor, smooth: Tensor | None) -> LinearSpecs:
    """Both halves of every row at its `column` (m,): row i's are 2 i, where the unit is active, and 2 i + 1.

    A smooth unit's are the upper and the lower half of its cell, which are split again. The new multiplier starts where the
    parent's lower slope is reproduced, so that a half starts no worse than its parent.

    gain: (m,), of `slope_gain`. smooth: bool (1, C), `Relaxation.smooth`.
    """
    at = torch.arange(len(rows), device=column.device)
    alpha = rows.alpha[at, column].float()
    both = rows.at(at.repeat_interleave(2))
    twice, column = torch.arange(2 * len(rows), device=column.device), column.repeat_interleave(2)
    sides = torch.tensor([1, -1], dtype=torch.int8, device=column.device).repeat(len(rows))
    if smooth is not None:
        cell = 2 * both.signs[twice, column].clamp(min=1) + (sides > 0).to(sides)
        sides = torch.where(smooth[0, column], cell, sides)
    both.signs[twice, column] = sides
    both.beta[twice, column] = torch.stack([gain * (1 - alpha), gain * alpha], 1).flatten().to(both.beta)
    return both


def slope_gain(relaxation: Relaxation, back: BackwardBound, row: Tensor, column: Tensor) -> Tensor:
    """By how much the coefficients at (row, column) grow from the least to the largest lower slope."""
    rise = relaxation.kinks.rise
    if (jumps := relaxation.kinks.jumps) is not None:
        rise = rise.masked_fill(jumps.which, 0.0)
    rise = rise[0, column] if len(rise) == 1 else rise[row, column]
    return rise * back.coefficients[row, column].clamp(min=0)


def choose(
    bounded: Bounded,
    rows: LinearSpecs,
    ranked: list[Tensor],
    bounds: Tensor,
    goal: Tensor,
    relaxation: Relaxation,
    back: BackwardBound,
) -> Tensor:
    """Return the column (m,) to split each row at, by filtered smart branching (FSB); -1 where there is none left.

    Every candidate's halves are bounded, in dense networks after a few steps of optimisation; what counts is
    how much of the way from the bound known (m,) to the goal (m,) they come, both halves together.
    """
    steps, overall = _DENSE if bounded.is_dense else _OTHERS
    row, column = candidates(bounded, rows.start, ranked, overall).nonzero().unbind(1)
    best = torch.full((len(rows),), -1, device=rows.spec.device)
    if not len(row):
        return best
    gains = []
    for part in torch.arange(len(row), device=row.device).split(max(1, bounded.rows // 2)):
        at = row[part]
        gain = slope_gain(relaxation, back, at, column[part])
        halves = children(rows.at(at), column[part], gain, relaxation.smooth)
        improved_bounds, _ = optimise(bounded, halves, steps, torch.inf)
        gap = (goal - bounds)[at, None].clamp(min=1e-9)
        gain = ((improved_bounds.view(-1, 2) - bounds[at, None]) / gap).clamp(1e-3, 1)
        gains.append(gain.prod(1) + 1e-3 * gain.sum(1))
    value = torch.cat(gains)
    top = torch.full_like(bounds, -torch.inf).scatter_reduce(0, row, value, "amax")
    wins = value >= top[row]
    best[row[wins].flip(0)] = column[wins].flip(0)  # of equals the first, which is written last
    return best


_EMPTY = 1e-7  # a violation that HiGHS is sure of
_LARGE = 1e4  # an empty subdomain's multipliers may be scaled up until any goal is reached


def leaf_bound(bounded: Bounded, row: LinearSpecs, goal: float) -> tuple[float, Tensor | None]:
    """Return (the best float64 lower bound of one row without open units, the point (d,) where the programme attains it).

    Only for the box of Linf; for other norms the bound is the row's own, and there is no point. `goal`: what the bound of an
    empty subdomain is to exceed.
    """
    from scipy.optimize import linprog  # half a second, which a sample that the root decides need not spend

    crown_bound = float(bounded.value(row))
    columns = row.signs[0].nonzero().flatten()
    if bounded.region.norm is not Norm.LINF:
        return crown_bound, None
    bare = replace(row, beta=torch.zeros_like(row.beta))
    cost, _ = _affine(bounded, bare)
    constraints = [_constraint(bounded, bare, int(column)) for column in columns]
    limits = np.stack([t[row.sample[0]].cpu().numpy() for t in (bounded.region.low, bounded.region.high)], 1)
    if not constraints:
        point = bounded.region.minimum(torch.from_numpy(cost)[None].to(row.spec.device), row.sample)[1][0]
        return crown_bound, point
    a, b = np.stack([g for g, _ in constraints]), np.array([-c for _, c in constraints])
    solved = linprog(cost, a, b, bounds=limits, method="highs")
    if solved.status == 0:
        beta = _multipliers(row, columns, solved.ineqlin.marginals)
        errors = np.array([bounded.error(int(column)) for column in columns])
        if errors.any():  # the optimum may lie beyond a jump: a counter-example does not
            inside = linprog(cost, a, b - 2 * errors, bounds=limits, method="highs")
            solved = inside if inside.status == 0 else solved
        return max(crown_bound, float(bounded.value(replace(row, beta=beta)))), torch.from_numpy(solved.x)
    if solved.status == 2:  # empty: the multipliers of the least violation prove it, scaled up
        wide = np.c_[a, -np.ones(len(a))]
        emptied = linprog(np.r_[0 * cost, 1.0], wide, b, bounds=[*limits, (0, None)], method="highs")
        if emptied.status == 0 and emptied.fun > _EMPTY:
            scale = _LARGE * max(1.0, abs(goal - crown_bound)) / emptied.fun
            beta = _multipliers(row, columns, scale * emptied.ineqlin.marginals)
            return max(crown_bound, float(bounded.value(replace(row, beta=beta)))), None
    return crown_bound, None


def _multipliers(row: LinearSpecs, columns: Tensor, marginals: np.ndarray) -> Tensor:
    beta = torch.zeros(row.beta.shape, dtype=torch.float64, device=row.spec.device)
    beta[0, columns] = torch.from_numpy(-marginals).clamp(min=0).to(beta)
    return beta


def _affine(bounded: Bounded, row: LinearSpecs) -> tuple[np.ndarray, float]:
    """(gradient (d,), constant) of the row's linear function, all of whose units are linear here."""
    back = bounded.backward(row, bounded.relaxation(row, torch.float64), torch.float64)
    return back.inputs[0].cpu().numpy(), float(back.constant)


def _constraint(bounded: Bounded, row: LinearSpecs, column: int) -> tuple[np.ndarray, float]:
    """(g, c) of the split at `column`: g x + c <= 0 in the subdomain."""
    j = next(j for j, at in enumerate(bounded.slices) if at.start <= column < at.stop)
    unit, below = bounded.units[j][column - bounded.slices[j].start], bounded.below(j)
    spec = torch.zeros(1, bounded.network.layers[j].size, device=row.spec.device)
    spec[0, unit] = -float(row.signs[0, column])
    part = LinearSpecs(j, spec, row.sample, row.signs[:, :below], row.alpha[:, :below], row.beta[:, :below])
    gradient, constant = _affine(bounded, part)
    return gradient, constant - bounded.error(column)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the work of a search.

    domains: subdomains for one sample. iterations: of the optimisation of each. batch: subdomains that are split together.
    memory: bytes of the open subdomains, beyond which the search goes deep instead of wide. rows: linear functions that are
    bounded together.
    """

    domains: int
    iterations: int
    batch: int
    memory: int
    rows: int


class BranchAndBoundSearch:
    """Which of Q linear functions exceed their goals everywhere in their regions.

    bounds: float64 (Q,) of the roots. domains: int64 (n,), subdomains bounded so far for each sample. given_up: bool (n,),
    samples with a subdomain that cannot be split and is not verified. examples: {sample: point (d,)} where `check` said yes.
    """

    def __init__(self, bounded: Bounded, roots: LinearSpecs, bounds: Tensor, goals: Tensor, limits: Limits) -> None:
        self._bounded, self._limits = bounded, limits
        self._queries, self._goals = roots, goals
        n = len(bounded.region)
        self.domains = torch.zeros(n, dtype=torch.int64)
        self.given_up = torch.zeros(n, dtype=torch.bool)
        self.examples: dict[int, Tensor] = {}
        self._broken = torch.zeros(n, dtype=torch.bool)  # the samples of `examples`
        self._abandoned = torch.zeros(len(roots), dtype=torch.bool, device=bounds.device)
        open_ = (bounds <= goals).nonzero().flatten()
        self._query, self._bound = open_, bounds[open_].float()
        self._signs = roots.signs[open_]
        self._alpha, self._beta = roots.alpha[open_].half(), roots.beta[open_].float()

    @property
    def open_queries(self) -> Tensor:
        """(Q,) bool: linear functions with a subdomain that is not verified."""
        is_open = self._abandoned.clone()
        is_open[self._query] = True
        return is_open

    def run(self, check: Callable[[Tensor, Tensor], Tensor], expired: Callable[[], bool]) -> None:
        """Split until nothing is open, a sample is beyond its limit or `expired` says that time is over.

        check: of points (m, d) and their samples (m,), whether each is a counter-example, (m,) bool. An exception in the middle leaves
        what was found before: functions with a subdomain at work stay open.
        """
        while not expired():
            selected = self._take()
            if not len(selected):
                return
            query, bounds = self._query[selected], self._bound[selected]
            rows = replace(
                self._queries.at(query),
                signs=self._signs[selected],
                alpha=self._alpha[selected].float(),
                beta=self._beta[selected],
            )
            try:
                self._keep(selected, invert=True)
                self._split(rows, query, bounds, check)
            except BaseException:
                self._abandoned[query] = True  # not all of their halves are among the open ones
                raise

    def _take(self) -> Tensor:
        """Return indices of the subdomains to split next, after those are dropped that no longer matter."""
        sample = self._queries.sample[self._query].cpu()
        spent = (self.domains >= self._limits.domains)[sample]
        # A subdomain within rounding of a jump may stay undecided beside one that has a counter-example.
        settled = (self._broken if self._bounded.has_jumps else self.given_up | self._broken)[sample]
        if bool(settled.any()):
            self._abandoned[self._query[settled.to(self._query.device)]] = True
            self._keep((~settled).nonzero().flatten().to(self._query.device))
            return self._take()
        able = (~spent).nonzero().flatten().to(self._query.device)
        query = self._query[able]
        gap = self._bound[able] - self._goals[query].float()
        bytes_each = self._signs.shape[1] * 7
        deep = len(self._query) * bytes_each > self._limits.memory
        worst = gap.argsort(descending=deep, stable=True)
        # Half of the places are of the functions nearest to their goals, so that one that is out of reach does not starve the others.
        missing = torch.zeros(len(self._goals), device=gap.device).scatter_reduce(0, query, -gap, "amax")
        nearest = worst[missing[query][worst].argsort(stable=True)][: self._limits.batch // 2]
        first = torch.zeros(len(able), dtype=torch.bool, device=gap.device)
        first[nearest] = True
        rest = worst[~first[worst]][: self._limits.batch - len(nearest)]
        return able[torch.cat([nearest, rest])]

    def _keep(self, index: Tensor, *, invert: bool = False) -> None:
        mask = torch.zeros(len(self._query), dtype=torch.bool, device=self._query.device)
        mask[index] = True
        indices = (~mask if invert else mask).nonzero().flatten()
        self._query, self._bound, self._signs, self._alpha, self._beta = (
            t.index_select(0, indices) for t in (self._query, self._bound, self._signs, self._alpha, self._beta)
        )

    def _split(
        self, rows: LinearSpecs, query: Tensor, bounds: Tensor, check: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        bounded, goal = self._bounded, self._goals[query].float()
        relaxation = bounded.relaxation(rows, torch.float32)
        back = bounded.backward(rows, relaxation, torch.float32)
        value, x = bounded.region.minimum(back.inputs, rows.sample)
        bounds = torch.maximum(bounds, back.constant + value)
        self._try(x, rows.sample, check)
        inputs, outputs = bounded.forward(x, rows, relaxation, back)
        ranked = scores(bounded, rows, relaxation, back, inputs, outputs)
        column = choose(bounded, rows, ranked, bounds, goal, relaxation, back)
        for i in (column < 0).nonzero().flatten().tolist():
            self._leaf(rows.at(torch.tensor([i], device=query.device)), int(query[i]), check)
        go = column >= 0
        if not bool(go.any()):
            return
        at = go.nonzero().flatten()
        gain = slope_gain(relaxation, back, at, column[at])
        halves = children(rows.at(at), column[at], gain, relaxation.smooth)
        owner, floor = (t[at].repeat_interleave(2) for t in (query, bounds))
        self.domains += 2 * torch.bincount(rows.sample[at].cpu(), minlength=len(self.domains))
        for part in torch.arange(len(halves), device=at.device).split(bounded.rows):
            self._bound_and_add(halves.at(part), owner[part], floor[part])

    def _bound_and_add(self, halves: LinearSpecs, query: Tensor, floor: Tensor) -> None:
        """Bound subdomains and add those to the open ones that are not verified; `floor`: their parents' bounds."""
        goal = self._goals[query]
        bound, halves = optimise(self._bounded, halves, self._limits.iterations, 2 * goal.float())
        is_open = bound <= goal
        hopeful = (~is_open).nonzero().flatten()
        if len(hopeful):  # verified is what float64 says
            is_open[hopeful] = self._bounded.value(halves.at(hopeful)) <= goal[hopeful]
        self._query = torch.cat([self._query, query[is_open]])
        self._bound = torch.cat([self._bound, torch.maximum(bound, floor)[is_open]])
        self._signs = torch.cat([self._signs, halves.signs[is_open]])
        self._alpha = torch.cat([self._alpha, halves.alpha[is_open].half()])
        self._beta = torch.cat([self._beta, halves.beta[is_open]])

    def _leaf(self, row: LinearSpecs, query: int, check: Callable[[Tensor, Tensor], Tensor]) -> None:
        goal = float(self._goals[query])
        bound, point = leaf_bound(self._bounded, row, goal) if self._bounded.network.piecewise_linear else (-1e9, None)
        if bound > goal:
            return
        if point is not None:
            self._try(point[None].to(row.spec.device), row.sample, check)
        self.given_up[int(row.sample[0])] = True
        self._abandoned[query] = True

    def _try(self, x: Tensor, sample: Tensor, check: Callable[[Tensor, Tensor], Tensor]) -> None:
        points = self._bounded.region.points(x, sample)
        for i in check(points, sample).nonzero().flatten().tolist():
            self.examples.setdefault(int(sample[i]), points[i])
            self._broken[int(sample[i])] = True
