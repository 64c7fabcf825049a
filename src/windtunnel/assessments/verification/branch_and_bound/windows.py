"""The largest number of a window of four, bounded from above as one maximum and not as a knockout of three kinks with a chord each.

For weights w >= 0 that sum to 1, and bounds d[i, j] >= x_i - x_j,

    max_i x_i = w x + max_i (x_i - w x) <= w x + max_i sum_j w_j d[i, j],

whose best w are those of a matrix game, and its value the best offset; of two numbers that is the chord. Of four numbers that
differ by d at most the offset is 3/4 d, where a knockout loses d / 2 in its first round and d / 2 to 3/4 d in its second.
Measured on a LeNet-5 trained normally (epsilon 0.01): margins of -0.76 and -1.51 become -0.09 and -0.85; 5,000 tighter bounds inside gain
0.07 there. The network stays written with three kinks, which are what is split: only their lines from above change.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.relaxations import Kinks, kinks

if TYPE_CHECKING:
    from windtunnel.assessments.verification.branch_and_bound.network import Network
    from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded

_ROOM = 1e-9  # of the largest difference of a window: what rounding in weights and sums may take


def of_pairs(network: Network, last: int, units: Tensor) -> tuple[Tensor, Tensor]:
    """The units of layer `last` - 1 that decide the first and the second pairs of the windows `units` (U,) of layer `last`."""
    before, wide = network.layers[last - 1], network.layers[last].shape[-1]
    every = torch.arange(before.size, device=units.device).view(*before.shape)
    return every[..., 0 : 2 * wide : 2].flatten()[units], every[..., 1 : 2 * wide : 2].flatten()[units]


def differences(bounded: Bounded, last: int, units: Tensor) -> Tensor:
    """Of the windows `units` (U,) of layer `last` d float64 (n, U, 4, 4), d[i, j] >= x_i - x_j; first the numbers of the first pair."""
    size = bounded.network.layers[last].size
    first, second = of_pairs(bounded.network, last, units)
    found = torch.zeros(len(bounded.region), len(units), 4, 4, dtype=torch.float64, device=units.device)
    # As `activations` writes them: each is x_k - x_i.
    written = [(0, 1, last - 1, first), (2, 3, last - 1, second)]
    written += [(i, 2 + k, last - 2, (2 * i + k) * size + units) for i in (0, 1) for k in (0, 1)]
    for i, k, layer, at in written:
        found[..., k, i], found[..., i, k] = bounded.up[layer][:, at], -bounded.low[layer][:, at]
    return found


def winners_apart(bounded: Bounded, last: int) -> tuple[Tensor, Tensor]:
    """(low, up), float64 (n, size), of layer `last`, the second pair's winner less the first's, which is the least of what it beats."""
    d = differences(bounded, last, torch.arange(bounded.network.layers[last].size, device=bounded.network.device))
    return -d[..., :2, 2:].amin(3).amax(2), d[..., 2:, :2].amin(3).amax(2)


def value_of(d: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """max_i sum_j weights_j d[i, j] over the i that are not `out`; of d (..., 4, 4), weights and bool out (..., 4)."""
    return (d @ weights[..., None])[..., 0].masked_fill(out, -torch.inf).amax(-1)


def best_weights(d: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """(weights (..., 4), their values (...,)), the best of each game; those of `out` are 0, which not all are.

    The best of a game have as many weights as rows that attain its value. Where these are of the same numbers, a linear system
    tells them (in a LeNet in 97 windows of 100; the values of all are 0.1 % above the best), and whatever it answers is made weights of,
    whose value is their own.
    """
    scaled = d / d.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30)
    best, value = torch.zeros_like(d[..., 0]), torch.full_like(d[..., 0, 0], torch.inf)
    for chosen in (list(some) for count in range(1, 5) for some in combinations(range(4), count)):
        count = len(chosen)
        system = d.new_zeros(*value.shape, count + 1, count + 1)
        system[..., :count, :count] = scaled[..., chosen, :][..., chosen]
        system[..., :count, count], system[..., count, :count] = -1.0, 1.0
        right = d.new_tensor([[0.0]] * count + [[1.0]]).expand(*value.shape, -1, -1)
        weights = torch.zeros_like(best)
        weights[..., chosen] = torch.linalg.solve_ex(system, right).result[..., :count, 0]
        weights, real = _made_weights(weights, out)
        found = torch.where(real, value_of(d, weights, out), torch.inf)
        best = torch.where((found < value)[..., None], weights, best)
        value = torch.minimum(value, found)
    return best, value


def _made_weights(some: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers (..., 4) as weights, 0 where `out`; whether something was left of them)."""
    some = some.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).masked_fill(out, 0.0)
    total = some.sum(-1)
    return some / total.clamp(min=1e-30)[..., None], total > 1e-3


class Windows:
    """The windows of layer `last` in all n regions of `bounded` whose last kinks are columns, U of them."""

    def __init__(self, bounded: Bounded, last: int) -> None:
        units, column = bounded.units[last], bounded.columns(last - 1)
        of_both = of_pairs(bounded.network, last, units)
        self._d = differences(bounded, last, units)
        self._room = _ROOM * self._d.amax((-1, -2))
        # Of the kinks of the first pairs, of the second ones, and of the last kinks: columns, -1 where there is none, and chords.
        self._columns = [*(column[at] for at in of_both), bounded.columns(last)[units]]
        ends = [
            (bounded.low[j][:, at], bounded.up[j][:, at])
            for j, at in zip((last - 1, last - 1, last), (*of_both, units), strict=True)
        ]
        self._chords = [kinks(low, up, low.new_zeros(())) for low, up in ends]
        self._out = _beaten([(low >= 0, (low < 0) & (up <= 0)) for low, up in ends])
        weights = best_weights(self._d, self._out)[0]
        self._weights, offset = _better(
            [(k.up, k.offset) for k in self._chords], weights, self._d, self._out, self._room
        )
        self._lines = _lines(self._weights, offset)

    def bend(self, k: Kinks, signs: Tensor, sample: Tensor | None) -> None:
        """Write the windows' lines from above into k, of rows with the splits `signs` (m, C) in the regions `sample` (m,).

        sample: None where there is one region; then k may be of one row, where nothing is split. Only the sum of a window's
        three offsets is bounded, and written at its last kink: what a row has of a window, it has from above of all of its kinks. Where
        the last kink is split that is not so, and the three keep chords of their own.
        """
        pick = slice(None) if sample is None else sample
        split = torch.zeros_like(self._columns[-1], dtype=torch.bool)
        for columns in self._columns:
            split |= (signs.index_select(1, columns.clamp(min=0)) != 0).any(0) & (columns >= 0)
        at = split.nonzero().flatten()
        of_split = self._of_split(k, signs, pick, at) if len(at) else None
        unsplit = [(slope[pick], offset[pick]) for slope, offset in self._lines]
        self._write(k, torch.arange(len(split), device=at.device), unsplit)
        if of_split is not None:
            self._write(k, at, of_split)

    def _of_split(self, k: Kinks, signs: Tensor, pick: slice | Tensor, at: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The lines of the windows `at` (W,), some of whose kinks are split in some rows."""
        chords, sides = [], []
        for columns, known in zip(self._columns, self._chords, strict=True):
            place, real = columns[at].clamp(min=0), columns[at] >= 0
            pairs = ((k.up, known.up), (k.offset, known.offset))
            slope, offset = (torch.where(real, now[:, place], fixed[pick][:, at].to(now)) for now, fixed in pairs)
            chords.append((slope, offset))
            side = signs[:, place] * real
            sides.append((side > 0, side < 0))
        out = self._out[pick][:, at] | _beaten(sides)
        weights, d, room = (t[pick][:, at].to(k.up) for t in (self._weights, self._d, self._room))
        lines = _lines(*_better(chords, weights, d, out, room))
        # The multiplier of a split last kink adds to what a row has of the pairs' kinks, from either side: they have chords of their own.
        apart = sides[2][0] | sides[2][1]
        return [
            (torch.where(apart, own, slope), torch.where(apart, of_own, offset))
            for (own, of_own), (slope, offset) in zip(chords, lines, strict=True)
        ]

    def _write(self, k: Kinks, at: Tensor, lines: list[tuple[Tensor, Tensor]]) -> None:
        for columns, line in zip(self._columns, lines, strict=True):
            real = (columns[at] >= 0).nonzero().flatten()
            for into, value in zip((k.up, k.offset), line, strict=True):
                some = value.index_select(1, real).to(into)
                into.index_copy_(1, columns[at][real], some.expand(len(into), -1))


def _lines(weights: Tensor, offset: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(slope, offset) of the kinks of both pairs, whose offsets are 0, and of the last kink, that make up weights (..., 4) and offset."""
    first, second = weights[..., :2].sum(-1), weights[..., 2:].sum(-1)
    within = (weights[..., 1] / first.clamp(min=1e-30), weights[..., 3] / second.clamp(min=1e-30))
    return [*((slope, torch.zeros_like(offset)) for slope in within), (second, offset)]


def _beaten(sides: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(..., 4) bool: the numbers that others of their window beat; sides: of the three kinks, where each is positive, where negative."""
    (second, first), (fourth, third), (those, these) = sides
    return torch.stack([second | those, first | those, fourth | these, third | these], -1)


def _better(
    chords: list[tuple[Tensor, Tensor]], known: Tensor, d: Tensor, out: Tensor, room: Tensor
) -> tuple[Tensor, Tensor]:
    """(weights, offset) of the less offset: those that the chords of three kinks make, or the `known` ones of who is not `out`."""
    (a, of_a), (b, of_b), (last, of_last) = chords
    own = torch.stack([(1 - last) * (1 - a), (1 - last) * a, last * (1 - b), last * b], -1)
    offset = of_last + (1 - last) * of_a + last * of_b
    offset = torch.minimum(offset, value_of(d, own, out) + room)
    known, real = _made_weights(known, out)
    offset = torch.where(out.all(-1), of_last, offset)  # of an empty subdomain, where no value is
    other = torch.where(real, value_of(d, known, out) + room, torch.inf)
    return torch.where((other < offset)[..., None], known, own), torch.minimum(offset, other)
