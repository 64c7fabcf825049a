"""Best-first branch and bound over the subdomains of many linear functions at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.branching import children, choose, scores, slope_gain
from windtunnel.assessments.verification.branch_and_bound.leaf_lp import leaf_bound
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs


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
        column = choose(bounded, rows, ranked, bounds, goal, relaxation, back, self._limits.rows)
        for i in (column < 0).nonzero().flatten().tolist():
            self._leaf(rows.at(torch.tensor([i], device=query.device)), int(query[i]), check)
        go = column >= 0
        if not bool(go.any()):
            return
        at = go.nonzero().flatten()
        halves = children(rows.at(at), column[at], slope_gain(relaxation, back, at, column[at]))
        owner, floor = (t[at].repeat_interleave(2) for t in (query, bounds))
        self.domains += 2 * torch.bincount(rows.sample[at].cpu(), minlength=len(self.domains))
        for part in torch.arange(len(halves), device=at.device).split(self._limits.rows):
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
