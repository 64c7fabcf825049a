"""Tighter bounds of unstable units: for each side of each of them planes of its own, and a small branch and bound over the layers below.

Decisive on dense networks: what all later bounds stand on improves, and many units become stable.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth
from windtunnel.assessments.verification.branch_and_bound.branching import children, slope_gain
from windtunnel.assessments.verification.branch_and_bound.fit_planes import with_planes
from windtunnel.assessments.verification.branch_and_bound.intermediate import improve_layer, unit_rows
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import difference_bounds
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs

# Of the slopes: of each unit, and of each half of a split one. All bounds of a residual network with 8 splits, 1 and 2 steps of the
# halves: a margin of -2.45 becomes -0.28 and -0.24 in 31 and 38 s; with 4 splits and 5 steps -0.65 in 46 s. On a CNN 1 step loses a third.
_STEPS, _HALF_STEPS = 5, 2
# With planes: steps of the slopes, then of the planes; columns of each layer that get one; units at a time.
_SLOPES, _PLANES, _COLUMNS, _TOGETHER = 20, 40, 48, 64
_KEPT = 9  # bytes of each column of a subdomain: the side it is on, its slope, its multiplier


@dataclass(frozen=True, slots=True)
class TighteningBudget:
    """Settings by which each inner bound is tightened."""

    splits: int  # of its branch and bound
    planes: bool  # multi-neuron upper bounds (planes) in place of triangle bounds


def tighten(
    bounded: Bounded, which: list[Tensor], effort: TighteningBudget, rows: int, memory: int, expired: Callable[[], bool]
) -> None:
    """Tighten each bound in `which` of an unstable neuron, layer by layer; bound each later layer again first.

    which: of each layer (2, n, size) bool. rows: linear functions that are bounded together. memory: bytes that their planes, and that
    their subdomains, may take. Ends early when `expired`; all bounds hold at any time.
    """
    most = min(rows // 2, _TOGETHER) if effort.planes else rows // 2
    touched = False
    for j, layer in enumerate(bounded.network.layers):
        if layer.decides_windows:
            bounded.tighten(j, *difference_bounds(bounded, j))
        if layer.direct or isinstance(layer.activation, Smooth) or not bounded.below(j):
            continue
        if touched:  # the layers below have tighter bounds now
            improve_layer(bounded, j, torch.ones_like(which[j]), _SLOPES if effort.planes else 0, rows, memory)
        ends = [bounded.low[j].clone(), -bounded.up[j]]
        open_ = (ends[0] < 0) & (ends[1] < 0) & which[j]
        touched = touched or bool(open_.any())
        together = max(1, min(most, memory // (_KEPT * (effort.splits + 1) * bounded.below(j))))
        for spec, sample, unit, side in unit_rows(open_, together):
            if expired():
                break
            units = bounded.start(j, spec, sample)
            bounds, units = optimise(bounded, units, _SLOPES if effort.planes else _STEPS, 0.0)
            if effort.planes:
                units = with_planes(bounded, units, _PLANES, memory, _COLUMNS)
                bounds = bounded.value(units, torch.float32)
            improved_bounds = _best_first(bounded, units, bounds, effort.splits)
            for k, end in enumerate(ends):
                at = side == k
                end[sample[at], unit[at]] = torch.maximum(end[sample[at], unit[at]], improved_bounds[at])
        bounded.tighten(j, ends[0], -ends[1])
        if expired():
            return


def _best_first(bounded: Bounded, roots: LinearSpecs, bounds: Tensor, splits: int) -> Tensor:
    """float64 lower bounds (m,) of the rows after `splits` splits of each one's worst subdomain; a positive one is enough.

    bounds: float32 (m,), without splits.
    """
    m, device = len(roots), roots.spec.device
    best_bounds = torch.full((m, splits + 1), torch.inf, device=device)
    is_created = torch.zeros_like(best_bounds, dtype=torch.bool)  # not told by `found`: float32 can claim anything
    stored = [
        torch.zeros(m, splits + 1, *t.shape[1:], dtype=t.dtype, device=device)
        for t in (roots.signs, roots.alpha, roots.beta)
    ]

    def keep(row: Tensor, slot: Tensor, value: Tensor, rows: LinearSpecs) -> None:
        best_bounds[row, slot], is_created[row, slot] = value, True
        for store, of_rows in zip(stored, (rows.signs, rows.alpha, rows.beta), strict=True):
            store[row, slot] = of_rows

    def kept_at(row: Tensor, slot: Tensor) -> LinearSpecs:
        signs, alpha, beta = (store[row, slot] for store in stored)
        return replace(roots.at(row), signs=signs, alpha=alpha, beta=beta)

    every = torch.arange(m, device=device)
    keep(every, torch.zeros_like(every), bounds, roots)
    for split in range(1, splits + 1):
        bound, worst = best_bounds.min(1)
        row = (bound <= 0).nonzero().flatten()
        if not len(row):
            break
        rows = kept_at(row, worst[row])
        relaxation = bounded.relaxation(rows, torch.float32)
        back = bounded.backward(rows, relaxation, torch.float32)
        k, a = relaxation.kinks, back.coefficients
        score, column = ((1e-3 * a.abs() * k.up - a.clamp(max=0) * k.offset) * k.open).max(1)
        go = (score > 0).nonzero().flatten()
        if not len(go):
            break
        row, column = row[go], column[go]
        halves = children(rows.at(go), column, slope_gain(relaxation, back, go, column))
        value, halves = optimise(bounded, halves, _HALF_STEPS, 0.0)
        value = torch.maximum(value, bound[row].repeat_interleave(2))
        sides = torch.arange(len(halves), device=device).view(-1, 2)
        keep(row, worst[row], value[sides[:, 0]], halves.at(sides[:, 0]))
        keep(row, torch.full_like(row, split), value[sides[:, 1]], halves.at(sides[:, 1]))
    exact = torch.full_like(best_bounds, torch.inf, dtype=torch.float64)
    row, slot_index = is_created.nonzero().unbind(1)
    # Few at a time, so that nearly all parts are of one size, which is recorded once.
    for part in torch.arange(len(row), device=device).split(max(1, m // 2)):
        exact[row[part], slot_index[part]] = bounded.value(kept_at(row[part], slot_index[part]))
    return exact.amin(1)
