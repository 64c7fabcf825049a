"""Which unit to split: a few candidates by cheap scores, then those whose worse half a few steps of optimisation improve most.

Sources: BaBSR (Bunel et al. 2020, arXiv 1909.06588), filtered smart branching (De Palma et al. 2021, arXiv 2104.06718).
"""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.verification.branch_and_bound.optimise import optimise
from windtunnel.verification.branch_and_bound.propagation import Back, Bounded, Rows
from windtunnel.verification.branch_and_bound.relaxations import Lines

TRIAL_STEPS = 3
OVERALL = 2  # candidates by each score over all layers, beside the best of every layer


def scores(bounded: Bounded, rows: Rows, lines: list[Lines], back: Back, inputs: list[Tensor]) -> list[Tensor]:
    """Three scores of every column, (m, C) each, -1 where it cannot be split.

    What the offset of the unit's chord costs; BaBSR's estimate; and by how much the unit's line misses the activation at
    the point where the bound is attained (`inputs`: of the activations there).
    """
    found: list[list[Tensor]] = [[], [], []]
    for j, line in enumerate(lines):
        units, layer = bounded.columns.units[j], bounded.network.layers[j]
        if not len(units):
            continue
        a, open_, offset, slope = (t[:, units] for t in (back.coefficients[j], line.open, line.up_offset, line.up))
        least = line.least_at(units)
        bias = bounded.network.tape(len(rows), a.dtype).node(j)[0].detach().flatten()[units]
        cost = -a.clamp(max=0) * offset
        estimate = torch.maximum(bias * (slope - 1) * a, bias * (slope - least) * a) - cost
        z = inputs[j][:, units]
        taken, moved = (t[:, units] for t in back.lines[j])
        missed = a * (torch.maximum(z, least * z) - taken * z - moved)
        assert layer.splits
        for kept, score in zip(found, (cost, estimate.abs(), missed), strict=True):
            kept.append(torch.where(open_, score, -1.0))
    return [torch.cat(kept, 1) if kept else rows.alpha[:, :0] for kept in found]


def candidates(bounded: Bounded, start: int, ranked: list[Tensor]) -> Tensor:
    """(m, C) bool: the best column of every layer and the best few of all, by each score."""
    chosen = torch.zeros_like(ranked[0], dtype=torch.bool)
    for score in ranked:
        for at in bounded.columns.slices[:start]:
            if at.stop > at.start:
                chosen[:, at].scatter_(1, score[:, at].argmax(1, keepdim=True), value=True)
        chosen.scatter_(1, score.topk(min(OVERALL, score.shape[1]), 1).indices, value=True)
    return chosen & (ranked[0] >= 0)


def children(bounded: Bounded, rows: Rows, column: Tensor, lines: list[Lines], back: Back) -> Rows:
    """Both halves of every row at its `column` (m,): row i's are 2 i, where the unit is active, and 2 i + 1.

    The new multiplier starts where the lower slope of the parent is reproduced, so that a half starts no worse than it.
    """
    at = torch.arange(len(rows), device=column.device)
    coefficient, least = [], []
    for j, line in enumerate(lines):
        units = bounded.columns.units[j]
        coefficient.append(back.coefficients[j][:, units])
        least.append(torch.zeros(1, len(units), device=column.device) + line.least_at(units))
    positive = torch.cat(coefficient, 1)[at, column].clamp(min=0)
    rise = positive * (1 - torch.cat(least, 1).expand(len(rows), -1)[at, column])
    alpha = rows.alpha[at, column].float()
    beta = torch.stack([rise * (1 - alpha), rise * alpha], 1).flatten().float()
    both = rows.at(at.repeat_interleave(2))
    twice, column = torch.arange(2 * len(rows), device=column.device), column.repeat_interleave(2)
    both.signs[twice, column] = torch.tensor([1, -1], dtype=torch.int8, device=column.device).repeat(len(rows))
    both.beta[twice, column] = beta.to(both.beta)
    return both


def choose(
    bounded: Bounded, rows: Rows, ranked: list[Tensor], known: Tensor, goal: Tensor, lines: list[Lines], back: Back, size: int
) -> Tensor:
    """The column (m,) to split each row at; -1 where there is none left.

    Every candidate's halves are optimised for a few steps, `size` rows at a time; what counts is how much of the way from
    the bound known (m,) to the goal (m,) they come, both halves together.
    """
    row, column = candidates(bounded, rows.start, ranked).nonzero().unbind(1)
    best = torch.full((len(rows),), -1, device=rows.spec.device)
    if not len(row):
        return best
    worth = []
    for part in torch.arange(len(row), device=row.device).split(max(1, size // 2)):
        at = row[part]
        halves = children(bounded, rows.at(at), column[part], [line.at(at) for line in lines], back.at(at))
        found, _ = optimise(bounded, halves, TRIAL_STEPS, torch.inf)
        gap = (goal - known)[at, None].clamp(min=1e-9)
        gain = ((found.view(-1, 2) - known[at, None]) / gap).clamp(1e-3, 1)
        worth.append(gain.prod(1) + 1e-3 * gain.sum(1))
    value = torch.cat(worth)
    top = torch.full_like(known, -torch.inf).scatter_reduce(0, row, value, "amax")
    wins = value >= top[row]
    best[row[wins].flip(0)] = column[wins].flip(0)  # of equals the first, which is written last
    return best

