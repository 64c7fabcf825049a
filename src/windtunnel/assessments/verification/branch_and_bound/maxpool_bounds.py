"""The largest number of a window of four, bounded from above as one maximum and not as a knockout of three kinks with a chord each.

For weights w >= 0 that sum to 1, and bounds d[i, j] >= x_i - x_j,

    max_i x_i = w x + max_i (x_i - w x) <= w x + max_i sum_j w_j d[i, j],

whose best w are those of a matrix game, and its value the best offset; of two numbers that is the chord. Of four numbers that
differ by d at most the offset is 3/4 d, where a knockout loses d / 2 in its first round and d / 2 to 3/4 d in its second.
A ReLU after the window, or ReLUs before it, make 0 a fifth number. The network stays written with three kinks, or four, which are what
is split: only their lines from above change. What this gains is in docs/benchmarks/verification.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Kinks, kinks
from windtunnel.assessments.verification.branch_and_bound.layer_bounds import LayerBounds
from windtunnel.assessments.verification.branch_and_bound.network import Network

_WINDOWS, _MEMORY = 64, 2**30  # whose weights are written out at a time, and bytes that this may take
_PART = 0.25  # of the input: what the numbers of windows that get planes may see
_ROOM = 1e-9  # of the largest difference of a window: what rounding in weights and sums may take


def of_pairs(network: Network, last: int, units: Tensor) -> tuple[Tensor, Tensor]:
    """Return the units of layer `last` - 1 that decide the first and the second pairs of the windows `units` (U,) of layer `last`."""
    before, wide = network.layers[last - 1], network.layers[last].shape[-1]
    every = torch.arange(before.size, device=units.device).view(*before.shape)
    return every[..., 0 : 2 * wide : 2].flatten()[units], every[..., 1 : 2 * wide : 2].flatten()[units]


def differences(bounded: LayerBounds, last: int, units: Tensor) -> Tensor:
    """Return for the windows `units` (U,) of layer `last` d float64 (n, U, 4, 4), d[i, j] >= x_i - x_j; the first pair first."""
    bounds = torch.zeros(len(bounded.region), len(units), 4, 4, dtype=torch.float64, device=units.device)
    for i, k, layer, at in _written(bounded.network, last, units):
        bounds[..., k, i], bounds[..., i, k] = bounded.up[layer][:, at], -bounded.low[layer][:, at]
    return bounds


def _written(network: Network, last: int, units: Tensor) -> list[tuple[int, int, int, Tensor]]:
    """(i, k, layer, its units (U,)) of each difference x_k - x_i, as `rewrites` writes them, of the windows `units` of layer `last`."""
    size = network.layers[last].size
    first, second = of_pairs(network, last, units)
    across = [(i, 2 + k, last - 2, (2 * i + k) * size + units) for i in (0, 1) for k in (0, 1)]
    return [(0, 1, last - 1, first), (2, 3, last - 1, second), *across]


def difference_bounds(bounded: LayerBounds, last: int) -> tuple[Tensor, Tensor]:
    """(low, up), float64 (n, size), of layer `last`, the second pair's winner less the first's, which is the least of what it beats."""
    d = differences(bounded, last, torch.arange(bounded.network.layers[last].size, device=bounded.network.device))
    return -d[..., :2, 2:].amin(3).amax(2), d[..., 2:, :2].amin(3).amax(2)


def with_nothing(bounded: LayerBounds, last: int, units: Tensor, d: Tensor) -> Tensor:
    """(n, U, 5, 5): what `differences` says of the windows `units` (U,) of layer `last`, and of 0 as a fifth number.

    The ReLU of the largest number is the largest of five, as max pooling of ReLUs is, which `network` writes so.
    """
    first = last - 3  # the numbers themselves
    at = in_windows(bounded, first)[units]
    bounds = d.new_zeros(*d.shape[:2], 5, 5)
    bounds[..., :4, :4] = d
    bounds[..., 4, :4] = -bounded.low[first][:, at]
    bounds[..., :4, 4] = torch.minimum(bounded.up[first][:, at], bounded.up[last + 1][:, units, None])
    return bounds


def largest(bounded: LayerBounds, j: int) -> tuple[Tensor, Tensor]:
    """(low, up), float64 (n, size), of layer j, the largest numbers of windows: between the largest bounds of the numbers."""
    at = in_windows(bounded, j - 4)
    return bounded.low[j - 4][:, at].amax(2), bounded.up[j - 4][:, at].amax(2)


def in_windows(bounded: LayerBounds, j: int) -> Tensor:
    """int64 (windows, 4): the numbers, which are layer j, of each window of 2 x 2, side by side; column after column."""
    shape = bounded.network.layers[j].shape
    high, wide = shape[-2] // 2, shape[-1] // 2
    every = torch.arange(math.prod(shape), device=bounded.network.device).view(shape)
    pairs = every[..., : 2 * high, : 2 * wide].reshape(-1, high, 2, wide, 2)
    return pairs.permute(0, 1, 3, 4, 2).reshape(-1, 4)


class Windows:
    """The windows of layer `last` in all n regions of `bounded` of which some kink at the end is a column, U of them.

    That is the last kink, or the ReLU of the largest number where one follows that lies below `node`.
    """

    def __init__(self, bounded: LayerBounds, last: int, node: int) -> None:
        layers, units = bounded.network.layers, bounded.units[last]
        self._relu = last + 1 < node and layers[last + 1].follows_windows
        if self._relu:
            units = torch.cat([units, bounded.units[last + 1]]).unique()
        of_both = of_pairs(bounded.network, last, units)
        at = list(zip((last - 1, last - 1, last), (*of_both, units), strict=True))
        at += [(last + 1, units)] if self._relu else []
        # Of the kinks of the first pairs, of the second ones, of the last kinks and of their ReLUs: columns, -1 where there is none, and
        # chords.
        self._columns = [bounded.columns(j)[neurons] for j, neurons in at]
        ends = [(bounded.low[j][:, neurons], bounded.up[j][:, neurons]) for j, neurons in at]
        self._chords = [kinks(low, up, low.new_zeros(())) for low, up in ends]
        self._last, self._units, self._bounded = last, units, bounded
        self._out = _dominated([(low >= 0, (low < 0) & (up <= 0)) for low, up in ends[:3]])
        d = differences(bounded, last, units)
        games = [d, with_nothing(bounded, last, units, d)] if self._relu else [d]
        self._games = [_Game.of(d, out) for d, out in zip(games, self._outs(self._out), strict=False)]
        self._joint = self._chords[3].open > 0 if self._relu else torch.zeros_like(self._out[..., 0])
        self._apart = (self._columns[2] < 0) & ~self._joint
        chords = [(k.up, k.offset) for k in self._chords]
        self._lines = self._lines_of(chords, self._games, self._out, self._joint, self._apart)

    def game_with_zero(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """(weights (n, U, 5), bool: which are beaten) of the games of five of the windows `units` (U,)."""
        at = torch.searchsorted(self._units, units)
        return self._games[1].weights[:, at], self._outs(self._out)[1][:, at]

    def credit(self, lost: Tensor, sample: Tensor, credit: Callable[[int], Tensor]) -> None:
        """Credit what rows gain with the bounds that the windows' lines hang on, of undivided rows in the regions `sample` (m,).

        lost: (m, C), minus the coefficients of the columns' lines from above; those of the windows are set to 0. credit: of each layer
        (2, n, size), by how much the rows gain with its lower and its upper bounds, which is added to. The value of a game rises with
        d[i, j] by the weight of j times that of i for who wants it large.
        """
        ends = [(self._columns[2], ~self._joint & ~self._apart)]
        ends += [(self._columns[3], self._joint)] if self._relu else []
        for game, out, (columns, where) in zip(self._games, self._outs(self._out), ends, strict=False):
            at = (columns >= 0).nonzero().flatten()
            coefficients = lost[:, columns[at]] * where[sample][:, at]
            total = lost.new_zeros(len(where), len(at)).index_add_(0, sample, coefficients)
            large = best_weights(-game.d.mT, out)
            share = (large[..., :, None] * game.weights[..., None, :])[:, at].float() * total[..., None, None]
            for i, k, layer, units in _written(self._bounded.network, self._last, self._units[at]):
                credit(layer)[1][:, units] += share[..., k, i]
                credit(layer)[0][:, units] += share[..., i, k]
            if share.shape[-1] == 5:
                numbers = in_windows(self._bounded, self._last - 3)[self._units[at]]
                credit(self._last - 3)[0][:, numbers] += share[..., 4, :4]
                credit(self._last - 3)[1][:, numbers] += share[..., :4, 4]
        for n, columns in enumerate(self._columns):
            at = (columns >= 0).nonzero().flatten()
            lost[:, columns[at]] *= ~(self._joint if n == 3 else ~self._apart)[sample][:, at]

    def apply_maxpool_bounds(self, k: Kinks, signs: Tensor, sample: Tensor | None) -> None:
        """Write the windows' lines from above into k, of rows with the splits `signs` (m, C) in the regions `sample` (m,).

        sample: None where there is one region; then k may be of one row, where nothing is split. Only the sum of a window's
        offsets is bounded, and written at its end: what a row has of a window, it has from above of all of its kinks. Where
        the last kink is split that is not so, and all keep chords of their own.
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
        """Return the lines of the windows `at` (W,), some of whose kinks are split in some rows."""
        chords, sides, open_ = [], [], []
        for columns, chord in zip(self._columns, self._chords, strict=True):
            column, real = columns[at].clamp(min=0), columns[at] >= 0
            pairs = ((k.up, chord.up), (k.offset, chord.offset), (k.open, chord.open))
            slope, offset, may = (torch.where(real, now[:, column], fixed[pick][:, at].to(now)) for now, fixed in pairs)
            chords.append((slope, offset))
            side = signs[:, column] * real
            sides.append((side > 0, side < 0))
            open_.append(may > 0)
        out = self._out[pick][:, at] | _dominated(sides[:3])
        # The multiplier of a split last kink adds to what a row has of the pairs' kinks, from either side: they have chords of their own.
        apart = sides[2][0] | sides[2][1]
        joint = open_[3] & ~apart if self._relu else torch.zeros_like(apart)
        games = [game.at(pick, at, k.up.dtype) for game in self._games]
        return self._lines_of(chords, games, out, joint, apart | (self._columns[2][at] < 0) & ~joint)

    @staticmethod
    def _outs(out: Tensor) -> list[Tensor]:
        """Return which numbers are beaten (..., 4), of both games: the same of both games, where 0 is in the second one."""
        return [out, torch.cat([out, torch.zeros_like(out[..., :1])], -1)]

    def _lines_of(
        self, chords: list[tuple[Tensor, Tensor]], games: list[_Game], out: Tensor, joint: Tensor, apart: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """(slope, offset) of each kink. chords: theirs. out: (..., 4), who is beaten.

        joint: where the ReLU is bounded together with its window; elsewhere it has its chord. apart: where all have theirs.
        """
        combined = _made_of(chords[:3])
        weights, offset = games[0].better(combined, self._outs(out)[0])
        lines = _lines(weights, offset)
        if self._relu:
            (slope, of_chord), relu_chord = chords[3], chords[3]
            combined = torch.cat([weights * slope[..., None], 1 - slope[..., None]], -1), slope * offset + of_chord
            weights, offset = games[1].better(combined, self._outs(out)[1])
            inside = [(within, torch.zeros_like(offset)) for within, _ in _lines(weights[..., :4], offset)]
            lines = [_where(joint, joint_line, other) for joint_line, other in zip(inside, lines, strict=True)]
            lines.append(_where(joint, (1 - weights[..., 4], offset), relu_chord))
        return [_where(apart, relu_chord, line) for relu_chord, line in zip(chords, lines, strict=True)]

    def _write(self, k: Kinks, at: Tensor, lines: list[tuple[Tensor, Tensor]]) -> None:
        for columns, line in zip(self._columns, lines, strict=True):
            real = (columns[at] >= 0).nonzero().flatten()
            for into, value in zip((k.up, k.offset), line, strict=True):
                values = value.index_select(1, real).to(into)
                into.index_copy_(1, columns[at][real], values.expand(len(into), -1))


@dataclass(frozen=True, slots=True)
class _Game:
    """The matrix game of windows: d (..., 4, 4) or 5, weights that are good in it, and the room that rounding may need."""

    d: Tensor
    weights: Tensor
    room: Tensor

    @classmethod
    def of(cls, d: Tensor, out: Tensor) -> _Game:
        """With the best weights, 0 of who is `out`."""
        return cls(d, best_weights(d, out), _ROOM * d.abs().amax((-1, -2)))

    def at(self, pick: slice | Tensor, windows: Tensor, dtype: torch.dtype) -> _Game:
        """Select windows `windows` of regions `pick`, cast to `dtype`."""
        return _Game(*(t[pick][:, windows].to(dtype) for t in (self.d, self.weights, self.room)))

    def better(self, combined: tuple[Tensor, Tensor], out: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, offset) of the less offset: those that chords make, whose offset is known, or one's own of who is not `out`."""
        chord_weights, of_chords = combined
        offset = torch.minimum(of_chords, value_of(self.d, chord_weights, out) + self.room)
        game_weights, real = made_weights(self.weights, out)
        offset = torch.where(out.all(-1), of_chords, offset)  # of an empty subdomain, where no value is
        other = torch.where(real, value_of(self.d, game_weights, out) + self.room, torch.inf)
        return torch.where((other < offset)[..., None], game_weights, chord_weights), torch.minimum(offset, other)


def _where(condition: Tensor, chosen: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.where(condition, chosen[0], other[0]), torch.where(condition, chosen[1], other[1])


def _lines(weights: Tensor, offset: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(slope, offset) of the kinks of both pairs, whose offsets are 0, and of the last kink, that make up weights (..., 4) and offset.

    Weights that sum to less than 1 are those of the largest number times that sum.
    """
    first, second = weights[..., :2].sum(-1), weights[..., 2:].sum(-1)
    within = (weights[..., 1] / first.clamp(min=1e-30), weights[..., 3] / second.clamp(min=1e-30))
    zero = torch.zeros_like(offset)
    return [*((slope, zero) for slope in within), (second / (first + second).clamp(min=1e-30), offset)]


def _dominated(sides: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(..., 4) bool: the numbers that others of their window beat; sides: of the three kinks, where each is positive, where negative."""
    (second, first), (fourth, third), (later_wins, earlier_wins) = sides
    return torch.stack([second | later_wins, first | later_wins, fourth | earlier_wins, third | earlier_wins], -1)


def _made_of(chords: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(weights, offset) that the chords of three kinks make."""
    (a, of_a), (b, of_b), (last, of_last) = chords
    weights = torch.stack([(1 - last) * (1 - a), (1 - last) * a, last * (1 - b), last * b], -1)
    return weights, of_last + (1 - last) * of_a + last * of_b


_PIVOTS, _GAIN = 20, 1e-9  # of the simplex method: the most, and the least that one must gain


def value_of(d: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """max_i sum_j weights_j d[i, j] over the i that are not `out`; of d (..., K, K), weights and bool out (..., K)."""
    return (d @ weights[..., None])[..., 0].masked_fill(out, -torch.inf).amax(-1)


def best_weights(d: Tensor, out: Tensor) -> Tensor:
    """Weights (..., K), the best of each game; those of `out` are 0, which not all are.

    By the simplex method, all games at once: with a = d + 2 > 0 in units of the largest difference, the y >= 0 of the largest sum
    for which a y <= 1 are the weights divided by the value. Whatever it ends with is made weights of, whose value is their own.
    """
    k, games = d.shape[-1], d.reshape(-1, *d.shape[-2:])
    none = out.reshape(-1, k)
    a = (games / games.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30) + 2).masked_fill(none[..., None], 0.0)
    # Columns: y, what is left of each 1, and the ones; the last row is what the sum gains with each.
    table = d.new_zeros(len(a), k + 1, 2 * k + 1)
    table[:, :k, :k], table[:, :k, k : 2 * k] = a, torch.eye(k).to(d)
    table[:, :k, -1], table[:, k, :k] = 1.0, 1.0
    basis = torch.arange(k, 2 * k, device=d.device).repeat(len(a), 1)
    never, every = torch.cat([none, torch.zeros_like(none)], 1), torch.arange(len(a), device=d.device)
    for _ in range(_PIVOTS):
        gain, enters = table[every, k, :-1].masked_fill(never[every], -torch.inf).max(1)
        every, enters = every[gain > _GAIN], enters[gain > _GAIN]
        if not len(every):
            break
        entries = table[every]
        column = entries.gather(2, enters[:, None, None].expand(-1, k + 1, 1))[..., 0]
        ratio = torch.where(column[:, :k] > _GAIN, entries[:, :k, -1] / column[:, :k], torch.inf)
        leaves = ratio.argmin(1)
        row = entries.gather(1, leaves[:, None, None].expand(-1, 1, 2 * k + 1))
        row = row / column.gather(1, leaves[:, None])[..., None]
        column.scatter_add_(1, leaves[:, None], torch.full_like(leaves[:, None], -1, dtype=d.dtype))
        table[every] = entries - column[..., None] * row
        basis[every, leaves] = enters
    y = d.new_zeros(len(a), 2 * k).scatter_(1, basis, table[:, :k, -1])[:, :k]
    return made_weights((y / y.sum(1, keepdim=True)).view(out.shape), out)[0]


def made_weights(entries: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers (..., K) as weights, 0 where `out`; whether something was left of them)."""
    entries = entries.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).masked_fill(out, 0.0)
    total = entries.sum(-1)
    return entries / total.clamp(min=1e-30)[..., None], total > 1e-3


@dataclass(frozen=True, slots=True)
class UnstableWindows:
    """Inputs of windows whose ReLU is unstable: int64 `units` (U,), and their four numbers and 0, K = 5 in all, as maps of a few inputs.

    receptive: int64 (U, P), which inputs, and others where w is 0. w: float64 (U, K, P), b (U, K).
    """

    units: Tensor
    receptive: Tensor
    w: Tensor
    b: Tensor

    def at(self, units: Tensor) -> UnstableWindows:
        """Select some of the units, in their order."""
        position = torch.searchsorted(self.units, units)
        return UnstableWindows(units, self.receptive[position], self.w[position], self.b[position])


@dataclass(frozen=True, slots=True)
class Pieces:
    """The numbers, and what is known of them in n regions.

    weights: (n, U, K), with which a line from above lies little too high. out: bool (n, U, K), those that others beat. spread: (n, U),
    between what the largest can be.
    """

    numbers: UnstableWindows
    weights: Tensor
    out: Tensor
    spread: Tensor


def numbers_of(bounded: LayerBounds, j: int) -> UnstableWindows | None:
    """Return the numbers of the windows of layer j's columns; None unless they are affine in a small part of the input."""
    network, units = bounded.network, bounded.units[j]
    if not network.layers[j].follows_windows or not network.layers[j - 4].direct or not len(units):
        return None
    parts = []
    for at in in_windows(bounded, j - 4)[units].split(max(1, min(_WINDOWS, _MEMORY // (200 * network.width)))):
        maps = network.maps(j - 4, at.flatten())
        if maps is None:
            return None
        w, b = (t.unflatten(0, at.shape) for t in maps)
        is_visible = (w != 0).any(1)
        inputs = is_visible.double().topk(int(is_visible.sum(1).amax()), 1).indices
        if inputs.shape[1] > _PART * network.inputs:
            return None
        parts.append((inputs, w.gather(2, inputs[:, None].expand(-1, 4, -1)), b))
    most = max(inputs.shape[1] for inputs, _, _ in parts)
    inputs, w = (torch.cat([F.pad(part[k], (0, most - part[k].shape[-1])) for part in parts]) for k in (0, 1))
    return UnstableWindows(units, inputs, F.pad(w, (0, 0, 0, 1)), F.pad(torch.cat([b for _, _, b in parts]), (0, 1)))
