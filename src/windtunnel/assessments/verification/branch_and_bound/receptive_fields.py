"""Units of a layer that see disjoint parts of the input, and of every layer before: their linear functions are carried back as one.

In a convolutional network a unit depends on a small window. The sum of units whose windows are disjoint in every leaf keeps
them apart: each coefficient belongs to one of them, and so does what it adds to the constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.network import Network, gather

_LARGEST = 2**26  # entries of the tables of who depends on what, beyond which units stay alone
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

    def part(self, units: Tensor) -> Group:
        """Return the same positions of some channels."""
        return replace(self, units=units)

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
    return [
        (shape[0] if len(shape) > 1 else 1, math.prod(shape[1:]) if len(shape) > 1 else shape[0]) for shape in shapes
    ]


def _found(network: Network, j: int, rows: int) -> tuple[Tensor, list[Tensor]]:
    """(colour (P,) of each position, bool tables (P, positions) of what it depends on in each leaf); nothing where that gains nothing."""
    no_groups = torch.empty(0, dtype=torch.int64, device=network.device), list[Tensor]()
    shape = network.layers[j].shape
    positions = math.prod(shape[1:])
    if positions < 2 or positions * sum(of_leaf for _, of_leaf in _shapes(network, j)) > _LARGEST:
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
