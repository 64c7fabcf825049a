"""Which units' bounds a verdict hangs on: where the work of better bounds is worth its time."""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows


def influential(bounded: Bounded, rows: Rows, share: float) -> list[Tensor]:
    """(n, size) bool of each layer: the fewest units of every sample whose chords cost its rows `share` of what all chords of the layer do.

    A chord lies above its unit by an offset that shrinks with the unit's interval; multiplied by the coefficient of the unit's output, that
    is what the bound loses by it. Smooth units have no chord, and all count.
    """
    n, network = len(bounded.region), bounded.network
    relaxation = bounded.relaxation(rows, torch.float32)
    back = bounded.backward(rows, relaxation, torch.float32)
    k = relaxation.kinks
    lost = -back.coefficients.clamp(max=0) * k.offset * k.open
    cost = torch.zeros(n, lost.shape[1], device=lost.device).index_add_(0, rows.sample, lost)
    found = []
    for layer, units, at in zip(network.layers, bounded.units, bounded.slices, strict=True):
        which = torch.full((n, layer.size), not layer.splits, device=network.device)
        ordered, order = cost[:, at].sort(1, descending=True)
        before = ordered.cumsum(1) - ordered
        wanted = (before < share * ordered.sum(1, keepdim=True)) & (ordered > 0)
        which[:, units] = torch.zeros_like(wanted).scatter(1, order, wanted)
        found.append(which)
    return found
