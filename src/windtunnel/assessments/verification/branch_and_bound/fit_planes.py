"""Linear functions with planes in the place of chords, fitted to each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from windtunnel.assessments.verification.branch_and_bound.adam import Adam
from windtunnel.assessments.verification.branch_and_bound.maxpool_planes import SLOPES, OfLargest
from windtunnel.assessments.verification.branch_and_bound.relu_planes import RATES, OfReLUs

if TYPE_CHECKING:
    from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
    from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs

_COPIES = 8  # of all planes, while they are improved
_TRIAL, _GAIN = 25, 0.02  # steps after which the bounds must have gained that share of what they were
_LAST = 5  # iterates among which the best is looked for: their rate falls, so that earlier ones are worse


def with_planes(bounded: Bounded, rows: LinearSpecs, iterations: int, memory: int, most: int) -> LinearSpecs:
    """Undivided rows, each a linear function of its own, with planes and the slopes alpha that go with them.

    most: columns of each layer that get planes, those whose chords cost the function most.
    As they are where no layer allows for planes, all of them together take more than `memory` bytes, or the first steps gain
    next to nothing, as on convolutional networks: planes make every bound after them slower.
    """
    weights = {j: affine[0] for j in range(rows.start) if most and (affine := bounded.affine(j))}
    windows = {j: pieces for j in range(rows.start) if (pieces := bounded.pieces(j))}
    numbers = sum(min(most, len(w)) * w.shape[1] for w in weights.values()) + sum(
        p.numbers.w.numel() for p in windows.values()
    )
    if not (weights or windows) or _COPIES * 4 * len(rows) * numbers > memory:
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
    slopes, first, reached = Adam.of(alpha, *(SLOPES if windows else RATES)), best, best
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
