"""Bounds of a whole layer whose units see small windows: those of disjoint windows are carried back as one linear function.

A convolutional layer has thousands of units, and a dense pass through the network for each of them takes most of a minute. As many
passes do as there are channels, times positions whose windows overlap. Slopes that are better for the sum are better for each
of them, because none depends on the slopes of another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.receptive import Group
from windtunnel.core.contracts import Norm

_NUMBERS = 2**22  # coefficients of the input, of units apart, at a time


def bound_together(
    bounded: Bounded, j: int, groups: list[Group], ends: list[Tensor], which: Tensor, iterations: int, rows: int
) -> None:
    """Raise the lower bounds `ends` of z and of -z, each float64 (n, size), where `which` (2, n, size) says so.

    By CROWN, whose slopes are optimised where there are `iterations`. Without these, intervals over the inputs of the layer come first:
    they cost little, and units that they show to be stable need no more. rows: linear functions that are carried together.
    """
    parts = [group.part(units) for group in groups for units in group.units.split(max(1, rows // 2))]
    for i in range(len(bounded.region)):
        layer = _Layer(bounded, j, i, ends, which)
        if not iterations:
            for part in parts:
                layer.bound(part)
        else:
            chosen = [layer.chosen(part) for part in parts]
            slopes = layer.slopes(parts, chosen, iterations, rows)
            for part, (side, row), alpha in zip(parts, chosen, slopes, strict=True):
                if len(row):
                    layer.raise_by_lines(part, part.owners(), layer.gradients(part), side, row, alpha)


class _Layer:
    """Layer j in the region of sample i. Its bounds are raised in place."""

    def __init__(self, bounded: Bounded, j: int, i: int, ends: list[Tensor], which: Tensor) -> None:
        self._bounded, self._j, self._ends, self._which = bounded, j, [end[i] for end in ends], which[:, i]
        self._layer = bounded.network.layers[j]
        self._sample = torch.tensor([i], device=bounded.network.device)
        self._boxes = [bounded.box(leaf, self._sample) for leaf in range(j + 1)]

    def bound(self, group: Group) -> None:
        """By intervals, and by CROWN what they leave open."""
        if not bool(self._which[:, group.units].any()):
            return
        owners, gradients = group.owners(), self.gradients(group)
        self._raise_by_intervals(group, owners, gradients)
        side, row = self.chosen(group)
        if len(row) and not (self._layer.direct and self._bounded.region.norm is Norm.LINF):  # then intervals are exact
            self.raise_by_lines(group, owners, gradients, side, row, None)

    def chosen(self, group: Group) -> tuple[Tensor, Tensor]:
        """(side, row) of the channels of a group with a unit that is asked for and open."""
        units, open_ = group.units, self._which[:, group.units]
        if self._layer.splits:
            open_ = open_ & (self._ends[0][units] < 0) & (self._ends[1][units] < 0)
        side, row = open_.any(2).nonzero().unbind(1)
        return side, row

    def slopes(
        self, groups: list[Group], chosen: list[tuple[Tensor, Tensor]], iterations: int, rows: int
    ) -> list[Tensor]:
        """For each group the optimised slopes of its chosen rows, which are optimised over the groups' borders."""
        spec = torch.cat([
            self._spec(group)[row].float() * (1 - 2 * side.float())[:, None]
            for group, (side, row) in zip(groups, chosen, strict=True)
        ])  # fmt: skip
        found = list[Tensor]()
        for part in spec.split(rows):
            start = self._bounded.start(self._j, part, self._sample.expand(len(part)))
            found.append(optimise(self._bounded, start, iterations, torch.inf)[1].alpha)
        return list(torch.cat(found).split([len(row) for _, row in chosen]))

    def gradients(self, group: Group) -> list[Tensor | None]:
        """Of the sum of each channel's units by every leaf, float64 (channels, size)."""
        spec = self._spec(group)
        found = self._bounded.network.tape(len(spec), torch.float64).gradients(self._j, spec)
        return [None if gradient is None else gradient.flatten(1) for gradient in found]

    def raise_by_lines(
        self,
        group: Group,
        owners: list[Tensor],
        gradients: list[Tensor | None],
        side: Tensor,
        row: Tensor,
        alpha: Tensor | None,
    ) -> None:
        """By linear bounds carried back to the input, in float64, with the slopes alpha (m, C), or with CROWN's."""
        # As many rows as there are channels, or twice as many, so that the runs that are recorded serve every group.
        count = len(group.units) * (1 if len(row) <= len(group.units) else 2)
        padded = torch.arange(count, device=row.device).clamp(max=len(row) - 1)
        side_, row_, sample = side[padded], row[padded], self._sample.expand(count)
        sign = (1.0 - 2.0 * side_.double())[:, None]
        bounded, begun = self._bounded, [None if g is None else g[row_] * sign for g in gradients]
        rows = bounded.start(self._j, self._spec(group)[row_] * sign, sample)
        if alpha is not None:
            rows = rows.with_multipliers(alpha[padded], rows.beta)
        back = bounded.backward(rows, bounded.relaxation(rows, torch.float64), torch.float64, owners, begun)
        least = self._least(back.inputs, owners[0])
        self._raise(group.units[row], side, (back.constant + least)[: len(row)])

    def _least(self, inputs: Tensor, own: Tensor) -> Tensor:
        """(m, M): the minima over the region of the parts of inputs (m, d) that are each unit's; a few rows at a time."""
        found = list[Tensor]()
        for part in inputs.split(max(1, _NUMBERS // own.numel())):
            apart = (part[:, None] * own.T).flatten(0, 1)
            least = self._bounded.region.minimum(apart, self._sample.expand(len(apart)))[0]
            found.append(least.view(len(part), -1))
        return torch.cat(found)

    def _raise_by_intervals(self, group: Group, owners: list[Tensor], gradients: list[Tensor | None]) -> None:
        spec = self._spec(group)
        shift = self._bounded.network.tape(len(spec), torch.float64).node(self._j)[0].detach().flatten()
        middle = (spec * shift) @ owners[-1]
        spread = torch.zeros_like(middle)
        for gradient, (centre, radius), own in zip(gradients, self._boxes, owners, strict=False):
            if gradient is not None:
                middle = middle + (gradient * centre) @ own
                spread = spread + (gradient.abs() * radius) @ own
        for side, found in enumerate((middle - spread, -middle - spread)):
            self._raise(group.units, torch.full((len(spec),), side, device=spec.device), found)

    def _spec(self, group: Group) -> Tensor:
        units = group.units
        spec = torch.zeros(len(units), self._layer.size, dtype=torch.float64, device=units.device)
        return spec.scatter_(1, units, 1.0)

    def _raise(self, units: Tensor, side: Tensor, found: Tensor) -> None:
        for k, end in enumerate(self._ends):
            at = units[side == k]
            end[at] = torch.maximum(end[at], found[side == k])
