"""Which bounds of inner units a verdict hangs on: where the work of better ones is worth its time.

A chord lies above its ReLU by -l u / (u - l) at most: raising l by a little lowers that by u^2 / (u - l)^2 as much, lowering u by
l^2 / (u - l)^2; times the coefficient of the unit's output that is what a linear function gains. It gains from the bounds of deeper
units too, which gain from those before them: layer by layer backwards, this gives the derivative of the margins by every bound, and
times the width of the interval what there is to gain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.intermediate import unit_rows
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows


def influential(bounded: Bounded, margins: Rows, most: int, rows: int) -> list[Tensor]:
    """(2, n, size) bool of each layer, low and up: the `most` bounds of each sample from which its margins have most to gain.

    Only bounds that better slopes or splits below can improve. Smooth units have no chord: all of theirs count. rows: linear functions
    that are carried together.
    """
    network, n = bounded.network, len(bounded.region)
    if not network.layers:
        return []
    gain = _Gain(bounded)
    gain.add(margins, torch.ones(len(margins), device=network.device))
    scores: list[Tensor] = []
    for j in reversed(range(len(network.layers))):
        layer, units, at = network.layers[j], bounded.units[j], bounded.slices[j]
        found = torch.zeros(2, n, layer.size, device=network.device)
        if layer.splits and bounded.below(j):
            width = (bounded.up[j] - bounded.low[j])[:, units].float()
            found[:, :, units] = gain.total[:, :, at] * width
            for spec, sample, unit, side in unit_rows(found > 0, rows):
                own = torch.searchsorted(units, unit) + at.start
                gain.add(bounded.start(j, spec, sample), gain.total[side, sample, own])
        scores.append(found)
    scores.reverse()
    every = torch.cat(scores, 2).transpose(0, 1).flatten(1)
    least = every.topk(min(most, every.shape[1]), 1).values[:, -1]
    return [
        (score > 0) & (score >= least[:, None]) if layer.splits else torch.ones_like(score, dtype=torch.bool)
        for layer, score in zip(network.layers, scores, strict=True)
    ]


class _Gain:
    """total: (2, n, C), by how much the margins of each sample would rise with the lower and the upper bound of each column."""

    def __init__(self, bounded: Bounded) -> None:
        self._bounded = bounded
        columns = bounded.below(len(bounded.network.layers))
        self.total = torch.zeros(2, len(bounded.region), columns, device=bounded.network.device)

    def add(self, rows: Rows, weights: Tensor) -> None:
        """What the columns below the rows contribute, each row (m,) counting as much as its weight."""
        relaxation = self._bounded.relaxation(rows, torch.float32)
        back, k = self._bounded.backward(rows, relaxation, torch.float32), relaxation.kinks
        lost = -back.coefficients.clamp(max=0) * k.open * weights[:, None]
        for side, slope in enumerate((k.up, 1 - k.up)):
            self.total[side, :, : lost.shape[1]].index_add_(0, rows.sample, lost * slope**2)
