"""Which unit to split: a few candidates by cheap scores, then those whose worse half a few steps of optimisation improve most.

Sources: BaBSR (Bunel et al. 2020, arXiv 1909.06588), filtered smart branching (De Palma et al. 2021, arXiv 2104.06718).
"""

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import BackwardBound, Bounded, Relaxation
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs

# Of dense networks and of others: steps of a trial; candidates by each score over all layers, beside the best of every layer. Measured:
# without steps a dense network's search needs twice the subdomains, a CNN's or a residual network's half the time.
_DENSE, _OTHERS = (3, 2), (0, 0)


def scores(
    bounded: Bounded, rows: LinearSpecs, relaxation: Relaxation, back: BackwardBound, inputs: Tensor, outputs: Tensor
) -> list[Tensor]:
    """Three scores of every column, (m, C) each, -1 where it cannot be split.

    What the offset of the unit's chord costs; BaBSR's estimate; and by how much the unit's line misses the activation at
    the point where the bound is attained, where the units' inputs are `met` and their lines give `taken` (m, C).
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


def children(rows: LinearSpecs, column: Tensor, gain: Tensor) -> LinearSpecs:
    """Both halves of every row at its `column` (m,): row i's are 2 i, where the unit is active, and 2 i + 1.

    gain: (m,), of `slope_gain`. The new multiplier starts where the parent's lower slope is reproduced, so that a half
    starts no worse than its parent.
    """
    at = torch.arange(len(rows), device=column.device)
    alpha = rows.alpha[at, column].float()
    both = rows.at(at.repeat_interleave(2))
    twice, column = torch.arange(2 * len(rows), device=column.device), column.repeat_interleave(2)
    both.signs[twice, column] = torch.tensor([1, -1], dtype=torch.int8, device=column.device).repeat(len(rows))
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
    size: int,
) -> Tensor:
    """Return the column (m,) to split each row at; -1 where there is none left.

    Every candidate's halves are bounded, in dense networks after a few steps of optimisation, `size` rows at a time; what counts is
    how much of the way from the bound known (m,) to the goal (m,) they come, both halves together.
    """
    steps, overall = _DENSE if bounded.is_dense else _OTHERS
    row, column = candidates(bounded, rows.start, ranked, overall).nonzero().unbind(1)
    best = torch.full((len(rows),), -1, device=rows.spec.device)
    if not len(row):
        return best
    gains = []
    for part in torch.arange(len(row), device=row.device).split(max(1, size // 2)):
        at = row[part]
        halves = children(rows.at(at), column[part], slope_gain(relaxation, back, at, column[part]))
        improved_bounds, _ = optimise(bounded, halves, steps, torch.inf)
        gap = (goal - bounds)[at, None].clamp(min=1e-9)
        gain = ((improved_bounds.view(-1, 2) - bounds[at, None]) / gap).clamp(1e-3, 1)
        gains.append(gain.prod(1) + 1e-3 * gain.sum(1))
    value = torch.cat(gains)
    top = torch.full_like(bounds, -torch.inf).scatter_reduce(0, row, value, "amax")
    wins = value >= top[row]
    best[row[wins].flip(0)] = column[wins].flip(0)  # of equals the first, which is written last
    return best
