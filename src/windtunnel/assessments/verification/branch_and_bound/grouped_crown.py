"""Bounds of a whole layer whose units see small windows: those of disjoint windows are carried back as one linear function.

A convolutional layer has thousands of units, and a dense pass through the network for each of them takes most of a minute. As many
passes do as there are channels, times positions whose windows overlap. Slopes that are better for the sum are better for each
of them, because none depends on the slopes of another.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth
from windtunnel.assessments.verification.branch_and_bound.optimise import improved
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.receptive_fields import Group
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs
from windtunnel.core.contracts import Norm

_NUMBERS = 2**22  # coefficients of the input, of units apart, at a time
# Numbers of a float64 tensor on a processor. One of more than 32 MiB is mapped and cleared each time that it is made: the pairs of
# windows of a LeNet's second pooling take 13 s with tensors of 43 MB, and 7.5 s with 13 MB.
_LARGEST = 3 * 2**19


def bound_together(
    bounded: Bounded,
    j: int,
    groups: list[Group],
    ends: list[Tensor],
    which: Tensor,
    iterations: int,
    rows: int,
    memory: int,
) -> None:
    """Raise the lower bounds `ends` of z and of -z, each float64 (n, size), where `which` (2, n, size) says so.

    By CROWN, whose slopes are optimised where there are `iterations`. Without these, intervals over the inputs of the layer come first:
    they cost little, and units that they show to be stable need no more. rows: linear functions that are carried together.
    """
    parts = [group.part(units) for group in groups for units in group.units.split(_at_once(bounded, rows))]
    for i in range(len(bounded.region)):
        layer = _SampleLayer(bounded, j, i, ends, which)
        if not iterations:
            for part in parts:
                layer.bound(part)
        else:
            chosen = [layer.chosen(part) for part in parts]
            better, end = layer.improved(parts, chosen, iterations, rows, memory), 0
            for part, (side, row) in zip(parts, chosen, strict=True):
                if len(row):
                    at = torch.arange(end, end := end + len(row), device=row.device)
                    layer.raise_by_lines(layer.begun(part), side, row, better.at(at))


def _at_once(bounded: Bounded, rows: int) -> int:
    """Channels that are carried together, both sides of each."""
    network, most = bounded.network, rows // 2
    if network.device.type == "cpu":
        most = min(most, _LARGEST // (2 * max(network.sizes, default=1)))
    return max(1, most)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A group whose channels' sums are carried back to the leaves. spec: float64 (channels, size), these sums.

    gradients: of each leaf float64 (channels, its size). owners: see `Group.owners`.
    """

    units: Tensor
    spec: Tensor
    gradients: list[Tensor | None]
    owners: list[Tensor]


class _SampleLayer:
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
        begun = self.begun(group)
        self._raise_by_intervals(begun)
        side, row = self.chosen(group)
        if len(row) and not (self._layer.direct and self._bounded.region.norm is Norm.LINF):  # then intervals are exact
            self.raise_by_lines(begun, side, row, None)

    def chosen(self, group: Group) -> tuple[Tensor, Tensor]:
        """(side, row) of the channels of a group with a unit that is asked for and open."""
        units, open_ = group.units, self._which[:, group.units]
        if not isinstance(self._layer.activation, Smooth):
            open_ = open_ & (self._ends[0][units] < 0) & (self._ends[1][units] < 0)
        side, row = open_.any(2).nonzero().unbind(1)
        return side, row

    def improved(
        self, groups: list[Group], chosen: list[tuple[Tensor, Tensor]], iterations: int, rows: int, memory: int
    ) -> LinearSpecs:
        """Return the chosen rows of all groups, one after the other, with better slopes and planes."""
        spec = torch.cat(
            [
                self._spec(group)[row].float() * (1 - 2 * side.float())[:, None]
                for group, (side, row) in zip(groups, chosen, strict=True)
            ]
        )
        starts = (self._bounded.start(self._j, part, self._sample.expand(len(part))) for part in spec.split(rows))
        return LinearSpecs.joined([improved(self._bounded, start, iterations, torch.inf, memory) for start in starts])

    def begun(self, group: Group) -> _Begun:
        """Return the first step, the same for both sides."""
        spec = self._spec(group)
        of_leaves = self._bounded.network.tape(len(spec), torch.float64).gradients(self._j, spec)
        gradients = [None if gradient is None else gradient.flatten(1) for gradient in of_leaves]
        return _Begun(group.units, spec, gradients, group.owners())

    def raise_by_lines(self, begun: _Begun, side: Tensor, row: Tensor, better: LinearSpecs | None) -> None:
        """By linear bounds carried back to the input, in float64, with the slopes and planes of `better`, or with CROWN's."""
        # As many rows as there are channels, or twice as many, so that the runs that are recorded serve every group.
        count = len(begun.units) * (1 if len(row) <= len(begun.units) else 2)
        padded = torch.arange(count, device=row.device).clamp(max=len(row) - 1)
        channel, sample, bounded = row[padded], self._sample.expand(count), self._bounded
        sign = (1.0 - 2.0 * side[padded].double())[:, None]
        gradients = [None if gradient is None else gradient[channel] * sign for gradient in begun.gradients]
        spec = begun.spec[channel] * sign
        rows = bounded.start(self._j, spec, sample) if better is None else replace(better.at(padded), spec=spec)
        back = bounded.backward(rows, bounded.relaxation(rows, torch.float64), torch.float64, begun.owners, gradients)
        bounds = (back.constant + self._least(back.inputs, begun.owners[0]))[: len(row)]
        for k, end in enumerate(self._ends):
            units = begun.units[row[side == k]]
            end[units] = torch.maximum(end[units], bounds[side == k])

    def _least(self, inputs: Tensor, owners: Tensor) -> Tensor:
        """(m, M): the minima over the region of the parts of inputs (m, d) that are each unit's; a few rows at a time."""
        bounds = list[Tensor]()
        for part in inputs.split(max(1, _NUMBERS // owners.numel())):
            apart = (part[:, None] * owners.T).flatten(0, 1)
            least = self._bounded.region.minimum(apart, self._sample.expand(len(apart)))[0]
            bounds.append(least.view(len(part), -1))
        return torch.cat(bounds)

    def _raise_by_intervals(self, begun: _Begun) -> None:
        offset = self._bounded.network.tape(len(begun.spec), torch.float64).node(self._j)[0].detach().flatten()
        middle = (begun.spec * offset) @ begun.owners[-1]
        spread = torch.zeros_like(middle)
        for gradient, (centre, radius), owner in zip(begun.gradients, self._boxes, begun.owners, strict=False):
            if gradient is not None:
                middle = middle + (gradient * centre) @ owner
                spread = spread + (gradient.abs() * radius) @ owner
        for end, bounds in zip(self._ends, (middle - spread, -middle - spread), strict=True):
            end[begun.units] = torch.maximum(end[begun.units], bounds)

    def _spec(self, group: Group) -> Tensor:
        units = group.units
        spec = torch.zeros(len(units), self._layer.size, dtype=torch.float64, device=units.device)
        return spec.scatter_(1, units, 1.0)
