"""Tighter bounds of unstable units: for each side of each of them planes of its own, and a small branch and bound over the layers below.

Decisive on dense networks: what all later bounds stand on improves, and many units become stable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.branching import children, slope_gain
from windtunnel.assessments.verification.branch_and_bound.intermediate import unit_rows
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.planes import with_planes
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows

_STEPS = 5  # of the slopes of each half: with 20 the bounds gain 2 % more and take three times as long (MLP of 4 layers of 256)
# With planes: steps of the slopes, then of the planes; columns of each layer that get one; units at a time.
_SLOPES, _PLANES, _COLUMNS, _TOGETHER = 20, 40, 48, 64


@dataclass(frozen=True, slots=True)
class Effort:
    """bounds: of inner units, that are tightened. splits: of each. planes: whether they are bounded with planes in the place of chords."""

    bounds: int
    splits: int
    planes: bool


def tighten(
    bounded: Bounded, which: list[Tensor], effort: Effort, rows: int, memory: int, expired: Callable[[], bool]
) -> None:
    """Tighten each bound in `which` of an unstable unit, in the order of layers, so that later ones profit.

    which: of each layer (2, n, size) bool. rows: linear functions that are bounded together. memory: bytes that their planes may take.
    Ends early when `expired`; all bounds hold at any time.
    """
    together = max(1, min(rows // 2, _TOGETHER) if effort.planes else rows // 2)
    for j, layer in enumerate(bounded.network.layers):
        if layer.direct or not layer.splits or not bounded.below(j):
            continue
        ends = [bounded.low[j].clone(), -bounded.up[j]]
        open_ = (ends[0] < 0) & (ends[1] < 0) & which[j]
        for spec, sample, unit, side in unit_rows(open_, together):
            if expired():
                break
            units = bounded.start(j, spec, sample)
            _, units = optimise(bounded, units, _SLOPES if effort.planes else _STEPS, 0.0)
            if effort.planes:
                units = with_planes(bounded, units, _PLANES, memory, _COLUMNS)
            found = _best_first(bounded, units, effort.splits)
            for k, end in enumerate(ends):
                at = side == k
                end[sample[at], unit[at]] = torch.maximum(end[sample[at], unit[at]], found[at])
        bounded.tighten(j, ends[0], -ends[1])
        if expired():
            return


def _best_first(bounded: Bounded, roots: Rows, splits: int) -> Tensor:
    """float64 lower bounds (m,) of the rows after `splits` splits of each one's worst subdomain; a positive one is enough."""
    m, device = len(roots), roots.spec.device
    bounds = torch.full((m, splits + 1), torch.inf, dtype=torch.float64, device=device)
    bounds[:, 0] = bounded.value(roots)
    kept = [
        torch.zeros(m, splits + 1, *t.shape[1:], dtype=t.dtype, device=device)
        for t in (roots.signs, roots.alpha, roots.beta)
    ]
    for store, value in zip(kept, (roots.signs, roots.alpha, roots.beta), strict=True):
        store[:, 0] = value
    for split in range(1, splits + 1):
        worst = bounds.argmin(1)
        row = (bounds.amin(1) <= 0).nonzero().flatten()
        if not len(row):
            break
        signs, alpha, beta = (store[row, worst[row]] for store in kept)
        rows = replace(roots.at(row), signs=signs, alpha=alpha, beta=beta)
        relaxation = bounded.relaxation(rows, torch.float32)
        back = bounded.backward(rows, relaxation, torch.float32)
        k, a = relaxation.kinks, back.coefficients
        score, column = ((1e-3 * a.abs() * k.up - a.clamp(max=0) * k.offset) * k.open).max(1)
        go = (score > 0).nonzero().flatten()
        if not len(go):
            break
        row, worst, column = row[go], worst[row[go]], column[go]
        halves = children(rows.at(go), column, slope_gain(relaxation, back, go, column))
        _, halves = optimise(bounded, halves, _STEPS, 0.0)
        found = bounded.value(halves).view(-1, 2)
        found = torch.maximum(found, bounds[row, worst][:, None])
        for side, place in ((0, worst), (1, torch.full_like(worst, split))):
            bounds[row, place] = found[:, side]
            for store, value in zip(kept, (halves.signs, halves.alpha, halves.beta), strict=True):
                store[row, place] = value[side::2]
    return bounds.amin(1)
