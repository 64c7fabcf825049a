"""Bounds of a whole layer whose units see small windows: those of disjoint windows are carried back as one linear function.

In a convolutional network a unit depends on a small window. The sum of units whose windows are disjoint in every leaf keeps them apart:
each coefficient belongs to one of them, and so does what it adds to the constant. A convolutional layer has thousands of units, and a
dense pass through the network for each of them takes most of a minute; as many passes do as there are channels, times positions whose
windows overlap. Slopes that are better for the sum are better for each of them, because none depends on the slopes of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth
from windtunnel.assessments.verification.branch_and_bound.network import Network, gather
from windtunnel.assessments.verification.branch_and_bound.optimise import improved
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, LinearSpecs
from windtunnel.core.contracts import Norm

_LARGEST_TABLES = 2**26  # entries of the tables of who depends on what, beyond which units stay alone
_WORTH_IT = 0.7  # groups for each position: with more, carrying them together gains nothing


@dataclass(frozen=True, slots=True)
class Group:
    """Positions of a layer of shape (channels, ...) with disjoint windows; the units of all channels at a position share one.

    units: int64 (channels, M), those at these M positions. size: of the layer. windows: of each leaf up to the layer bool
    (M, positions). channels: of each leaf.
    """

    units: Tensor
    size: int
    windows: list[Tensor]
    channels: list[int]

    def owners(self) -> list[Tensor]:
        """Return for each leaf, and last of the inputs of the layer, float64 (size, M): 1 where a number is of the window of a position."""
        owner = torch.zeros(self.size, self.units.shape[1], dtype=torch.float64, device=self.units.device)
        owner[self.units, torch.arange(self.units.shape[1], device=self.units.device)] = 1.0
        leaves = zip(self.windows, self.channels, strict=True)
        return [*(window.T.double().repeat(channels, 1) for window, channels in leaves), owner]


def groups_of(network: Network, j: int, rows: int) -> list[Group]:
    """Return groups that make up layer j; none where it has no positions, or too few with disjoint windows.

    They are found once for a network, with `rows` linear functions at a time.
    """
    if j not in network.fields:
        network.fields[j] = _found(network, j, rows)
    colours, sees = network.fields[j]
    size, channels = network.layers[j].size, [channels for channels, _ in _shapes(network, j)]
    groups = list[Group]()
    for colour in range(int(colours.max()) + 1 if len(colours) else 0):
        members = (colours == colour).nonzero().flatten()
        units = torch.arange(size, device=colours.device).view(-1, len(colours))[:, members]
        groups.append(Group(units, size, [table[members] for table in sees], channels))
    return groups


def rows_of(network: Network, j: int, rows: int) -> Tensor:
    """int64 (size,): the number of the linear function of which each unit of layer j is a part: its group's channel, or itself.

    rows: as in `groups_of`.
    """
    size = network.layers[j].size
    groups = groups_of(network, j, rows)
    row_index, count = torch.arange(size, device=network.device), 0
    for group in groups:
        channels = len(group.units)
        row_index[group.units] = torch.arange(count, count + channels, device=network.device)[:, None]
        count += channels
    return row_index


def _shapes(network: Network, j: int) -> list[tuple[int, int]]:
    """(channels, positions) of each leaf up to layer j."""
    shapes = [network.input_shape, *(layer.shape for layer in network.layers[:j])]
    images = [shape if len(shape) > 1 else (1, *shape) for shape in shapes]
    return [(channels, math.prod(sides)) for channels, *sides in images]


def _found(network: Network, j: int, rows: int) -> tuple[Tensor, list[Tensor]]:
    """(colour (P,) of each position, bool tables (P, positions) of what it depends on in each leaf); nothing where that gains nothing."""
    no_groups = torch.empty(0, dtype=torch.int64, device=network.device), list[Tensor]()
    shape = network.layers[j].shape
    positions = math.prod(shape[1:])
    if positions < 2 or positions * sum(of_leaf for _, of_leaf in _shapes(network, j)) > _LARGEST_TABLES:
        return no_groups
    sees = _seen(network, j, positions, rows)
    meet = torch.zeros(positions, positions, device=network.device)
    for table in sees:
        meet += table.float() @ table.float().T
    colours = _coloured(meet > 0)
    return no_groups if int(colours.max()) + 1 > _WORTH_IT * positions else (colours, sees)


def _seen(network: Network, j: int, positions: int, rows: int) -> list[Tensor]:
    """Which positions of each leaf the units at each position depend on, whatever the lines of the activations are.

    Coefficients are carried back with random slopes and random weights of the channels: where what is carried is 0,
    it is for all slopes but a set of measure 0, that is for all (it is polynomial in them).
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5).to(network.device)

    channels = network.layers[j].size // positions
    weights, slopes, shapes = random(channels), [random(size) for size in network.sizes[:j]], _shapes(network, j)
    sees = [torch.zeros(positions, of_leaf, dtype=torch.bool, device=network.device) for _, of_leaf in shapes]
    for part in torch.arange(positions, device=network.device).split(rows):
        spec = torch.zeros(len(part), channels, positions, dtype=torch.float64, device=network.device)
        spec[torch.arange(len(part)), :, part] = weights
        tape = network.tape(len(part), torch.float64)
        gradients: list[Tensor | None] = [None] * (j + 1)
        gather(gradients, tape.gradients(j, spec.flatten(1)))
        for leaf in reversed(range(j + 1)):
            if (gradient := gradients[leaf]) is not None:
                sees[leaf][part] = (gradient != 0).view(len(part), *shapes[leaf]).any(1)
                if leaf:
                    gather(gradients, tape.gradients(leaf - 1, gradient * slopes[leaf - 1]))
    return sees


def _coloured(meet: Tensor) -> Tensor:
    """(P,) int64: each position gets the first colour that none it meets, (P, P) bool, has."""
    colours = torch.full((len(meet),), -1, dtype=torch.int64)
    for p, others in enumerate(meet.cpu()):
        used = set(colours[others].tolist())
        colours[p] = next(colour for colour in range(len(meet)) if colour not in used)
    return colours.to(meet.device)


_NUMBERS = 2**22  # coefficients of the input, of units apart, at a time
# Numbers of a float64 tensor on a processor: one of more than 32 MiB is mapped and cleared each time that it is made.
_LARGEST = 3 * 2**19


def bound_together(bounded: Bounded, j: int, groups: list[Group], ends: Tensor, which: Tensor, iterations: int) -> None:
    """Raise the lower bounds `ends`, float64 (2, n, size), of z and of -z where `which` (2, n, size) says so.

    By CROWN, whose slopes are optimised where there are `iterations`. Without these, intervals over the inputs of the layer come first:
    they cost little, and units that they show to be stable need no more.
    """
    parts = [replace(group, units=units) for group in groups for units in group.units.split(_at_once(bounded))]
    for i in range(len(bounded.region)):
        layer = _SampleLayer(bounded, j, i, ends, which)
        if not iterations:
            for part in parts:
                layer.bound(part)
        else:
            chosen = [layer.chosen(part) for part in parts]
            better, end = layer.improved(parts, chosen, iterations), 0
            for part, (side, row) in zip(parts, chosen, strict=True):
                if len(row):
                    at = torch.arange(end, end := end + len(row), device=row.device)
                    layer.raise_by_lines(layer.begun(part), side, row, better.at(at))


def _at_once(bounded: Bounded) -> int:
    """Channels that are carried together, both sides of each."""
    network, most = bounded.network, bounded.rows // 2
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

    def __init__(self, bounded: Bounded, j: int, i: int, ends: Tensor, which: Tensor) -> None:
        self._bounded, self._j, self._ends, self._which = bounded, j, ends[:, i], which[:, i]
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
            open_ = open_ & (self._ends[:, units] < 0).all(0)
        side, row = open_.any(2).nonzero().unbind(1)
        return side, row

    def improved(self, groups: list[Group], chosen: list[tuple[Tensor, Tensor]], iterations: int) -> LinearSpecs:
        """Return the chosen rows of all groups, one after the other, with better slopes and planes."""
        spec = torch.cat(
            [
                self._spec(group)[row].float() * (1 - 2 * side.float())[:, None]
                for group, (side, row) in zip(groups, chosen, strict=True)
            ]
        )
        parts = spec.split(self._bounded.rows)
        starts = (self._bounded.start(self._j, part, self._sample.expand(len(part))) for part in parts)
        return LinearSpecs.joined([improved(self._bounded, start, iterations, torch.inf) for start in starts])

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
        at = side[:, None], begun.units[row]
        self._ends[at] = torch.maximum(self._ends[at], bounds)

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
        bounds = torch.stack([middle - spread, -middle - spread])
        self._ends[:, begun.units] = torch.maximum(self._ends[:, begun.units], bounds)

    def _spec(self, group: Group) -> Tensor:
        units = group.units
        spec = torch.zeros(len(units), self._layer.size, dtype=torch.float64, device=units.device)
        return spec.scatter_(1, units, 1.0)
