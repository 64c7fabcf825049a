"""Bounds of the inputs of every activation, layer after layer: what all later bounds stand on; and better ones where verdicts hang on them.

A chord lies above its ReLU by -l u / (u - l) at most: raising l by a little lowers that by u^2 / (u - l)^2 as much, lowering u by
l^2 / (u - l)^2; times the coefficient of the unit's output that is what a linear function gains. It gains from the bounds of deeper
units too, which gain from those before them: layer by layer backwards, this gives the derivative of the margins by every bound, and
times the width of the interval what there is to gain. Bounds of unstable units become tighter by planes of their own for each side, and
by a small branch and bound over the layers below: decisive on dense networks, where many units become stable.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Observed, Smooth
from windtunnel.assessments.verification.branch_and_bound.grouped_crown import bound_together, groups_of, rows_of
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import difference_bounds, largest
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import improved, optimise, with_planes
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, LinearSpecs
from windtunnel.assessments.verification.branch_and_bound.search import children, slope_gain
from windtunnel.assessments.verification.regions import BallRegions


def influential(
    bounded: Bounded, margins: LinearSpecs, most: int, *, together: bool = False
) -> tuple[list[Tensor], Tensor]:
    """(2, n, size) bool of each layer, low and up: the `most` bounds of each sample from which its margins have most to gain.

    And (n,), in [0, 1], which share they are of all that there is to gain.
    Only bounds that better slopes or splits below can improve. Smooth units have no chord: all of theirs count; the last kinks of windows
    (`maxpool_bounds.py`) have lines that hang on other bounds than their own: none of theirs do. together: `most` linear functions, those
    of units of disjoint windows (`grouped_crown.py`) counted as one.
    """
    network, n = bounded.network, len(bounded.region)
    if not network.layers:
        return [], torch.ones(n, device=network.device)
    gain = _Gain(bounded)
    gain.add(margins)
    scores: list[Tensor] = []
    for j in reversed(range(len(network.layers))):
        layer = network.layers[j]
        weights = torch.zeros(2, n, layer.size, device=network.device)
        if not isinstance(layer.activation, Smooth) and bounded.below(j) and not layer.decides_windows:
            weights = gain.of_layer(j)
            weights[:, :, bounded.units[j]] += gain.total[:, :, bounded.slices[j]]
            for part in _weighted(bounded, j, weights):
                gain.add(part)
        scores.append(weights * (bounded.up[j] - bounded.low[j]).float())
    scores.reverse()
    row_of = [
        rows_of(network, j, bounded.rows) if together else torch.arange(layer.size, device=network.device)
        for j, layer in enumerate(network.layers)
    ]
    sums = [_summed(score, of_unit) for score, of_unit in zip(scores, row_of, strict=True)]
    every = torch.cat(sums, 2).transpose(0, 1).flatten(1)
    best = every.topk(min(most, every.shape[1]), 1).values
    which = [
        (score > 0) & (total[:, :, of_unit] >= best[:, -1:])
        if not isinstance(layer.activation, Smooth)
        else torch.ones_like(score, dtype=torch.bool)
        for layer, score, total, of_unit in zip(network.layers, scores, sums, row_of, strict=True)
    ]
    return which, torch.where(best[:, 0] > 0, best.sum(1) / every.sum(1), 1.0)


def _weighted(bounded: Bounded, j: int, weights: Tensor) -> Iterator[LinearSpecs]:
    """Yield the units of layer j as linear functions, z and -z times their weights (2, n, size); as one for disjoint windows."""
    row_of = rows_of(bounded.network, j, bounded.rows)
    side, sample, row = _summed(weights, row_of).nonzero().unbind(1)
    for part in torch.arange(len(row), device=weights.device).split(bounded.rows) if len(row) else ():
        sign = (1.0 - 2.0 * side[part])[:, None]
        spec = torch.where(row_of == row[part][:, None], weights[side[part], sample[part]], 0.0) * sign
        yield bounded.start(j, spec, sample[part])


def _summed(weights: Tensor, row_of: Tensor) -> Tensor:
    """(2, n, rows): the sums of weights (2, n, size) over the units of each linear function."""
    return weights.new_zeros(*weights.shape[:2], int(row_of.max()) + 1).index_add_(2, row_of, weights)


class _Gain:
    """total: (2, n, C), by how much the margins of each sample would rise with the lower and the upper bound of each column."""

    def __init__(self, bounded: Bounded) -> None:
        self._bounded = bounded
        columns = bounded.below(len(bounded.network.layers))
        self.total = torch.zeros(2, len(bounded.region), columns, device=bounded.network.device)
        self._layers: dict[int, Tensor] = {}

    def of_layer(self, j: int) -> Tensor:
        """(2, n, size): the same of bounds of layer j that lines of windows hang on."""
        if j not in self._layers:
            size = self._bounded.network.layers[j].size
            self._layers[j] = torch.zeros(2, len(self._bounded.region), size, device=self.total.device)
        return self._layers[j]

    def add(self, rows: LinearSpecs) -> None:
        """Return the contribution of the columns below the rows, which is in proportion to them."""
        relaxation = self._bounded.relaxation(rows, torch.float32)
        back, k = self._bounded.backward(rows, relaxation, torch.float32), relaxation.kinks
        lost = -back.coefficients.clamp(max=0) * k.open
        if k.jumps is not None:
            lost = lost.masked_fill(k.jumps.which | k.jumps.smooth, 0.0)
        for windows in self._bounded.windows_below(rows.start):
            windows.credit(lost, rows.sample, self.of_layer)
        for side, slope in enumerate((k.up, 1 - k.up)):
            self.total[side, :, : lost.shape[1]].index_add_(0, rows.sample, lost * slope**2)


def bound_network(
    network: Network,
    region: BallRegions,
    rows: int,
    initial_bounds: Sequence[tuple[Tensor, Tensor]] = (),
    memory: int = 2**30,
) -> Bounded:
    """CROWN bounds of every layer; in float64, `rows` at a time.

    initial_bounds: of each layer bounds (low, up), (n, size), that hold already, as of a larger region: the tighter of both count.
    """
    bounded = Bounded(network, region, rows, memory)
    for j, layer in enumerate(network.layers):
        if layer.decides_windows or layer.follows_windows:
            bounded.add(*(difference_bounds if layer.decides_windows else largest)(bounded, j))
        else:
            bounded.add(*_bounds_of_layer(bounded, j))
        if initial_bounds:
            bounded.tighten(j, *initial_bounds[j])
    return bounded


def _bounds_of_layer(bounded: Bounded, j: int) -> tuple[Tensor, Tensor]:
    network, n, size = bounded.network, len(bounded.region), bounded.network.layers[j].size
    ends = torch.full((2, n, size), -torch.inf, dtype=torch.float64, device=network.device)
    if network.layers[j].direct and not groups_of(network, j, bounded.rows):
        _exact(bounded, j, ends)
    else:
        every = torch.ones(2, n, size, dtype=torch.bool, device=network.device)
        _improve(bounded, j, ends, every, 0)
    return ends[0], -ends[1]


def improve_network(
    bounded: Bounded, which: list[Tensor], iterations: int, expired: Callable[[], bool], *, others: bool = True
) -> None:
    """Alpha-CROWN for the bounds in `which`, (2, n, size) bool of each layer; CROWN again for the others, where they are wanted.

    In the order of layers. Ends early when `expired`; all bounds hold at any time.
    """
    for j in range(len(bounded.network.layers)):
        if expired():
            return
        improve_layer(bounded, j, which[j], iterations, others=others)


def improve_layer(bounded: Bounded, j: int, which: Tensor, iterations: int, *, others: bool = True) -> None:
    """Raise the bounds of layer j by what is known of the layers below; see `improve_network`."""
    layer = bounded.network.layers[j]
    if layer.direct:
        return
    if layer.decides_windows:
        bounded.tighten(j, *difference_bounds(bounded, j))
        return
    ends = torch.stack([bounded.low[j], -bounded.up[j]])
    smooth = isinstance(layer.activation, Smooth)
    open_ = torch.ones_like(ends[0], dtype=torch.bool) if smooth else (ends < 0).all(0)
    if others and not isinstance(layer.activation, Observed):
        _improve(bounded, j, ends, open_ & ~which, 0)
    _improve(bounded, j, ends, open_ & which, iterations)
    bounded.tighten(j, ends[0], -ends[1])


def unit_rows(which: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(spec, sample, unit, side) of the bounds in `which` (2, n, size) bool, z from below and -z, `rows` at a time."""
    side, sample, unit = which.nonzero().unbind(1)
    for part in torch.arange(len(unit), device=which.device).split(rows) if len(unit) else ():
        spec = torch.zeros(len(part), which.shape[2], device=which.device)
        spec[torch.arange(len(part), device=which.device), unit[part]] = 1.0 - 2.0 * side[part]
        yield spec, sample[part], unit[part], side[part]


def _improve(bounded: Bounded, j: int, ends: Tensor, which: Tensor, iterations: int) -> None:
    """Raise the lower bounds `ends` (2, n, size) of z and of -z where `which` (2, n, size) says so."""
    if groups := groups_of(bounded.network, j, bounded.rows):
        bound_together(bounded, j, groups, ends, which, iterations)
    else:
        bound_apart(bounded, j, ends, which, iterations)


def bound_apart(bounded: Bounded, j: int, ends: Tensor, which: Tensor, iterations: int) -> None:
    """Bound a layer as `bound_together` does, with one linear function per neuron.

    Without `iterations` the intervals of the layers below count too.
    """
    every = torch.arange(len(bounded.region), device=which.device)
    boxes = [] if iterations else [bounded.box(leaf, every) for leaf in range(j + 1)]
    for spec, sample, unit, side in unit_rows(which, bounded.rows):
        part = bounded.start(j, spec, sample)
        if iterations:
            lower = bounded.value(improved(bounded, part, iterations, 0.0))
        else:
            lower = torch.maximum(bounded.value(part), _interval_bounds(bounded, j, spec, sample, boxes))
        ends[side, sample, unit] = torch.maximum(ends[side, sample, unit], lower)


def _interval_bounds(
    bounded: Bounded, j: int, spec: Tensor, sample: Tensor, boxes: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return float64 lower bounds (m,) of functions `spec` (m, size of layer j) in regions `sample` (m,), by the `boxes` of each leaf."""
    spec = spec.double()
    tape = bounded.network.tape(len(spec), torch.float64)
    lower = spec @ tape.node(j)[0].detach().flatten()
    for box, gradient in zip(boxes, tape.gradients(j, spec), strict=True):
        if gradient is not None:
            centre, radius = (end if len(end) == 1 else end[sample] for end in box)
            weights = gradient.flatten(1)
            lower = lower + (weights * centre).sum(1) - (weights.abs() * radius).sum(1)
    return lower


def _exact(bounded: Bounded, j: int, ends: Tensor) -> None:
    """Bound an affine map of the input: its rows are the same for every sample, so that they are found once."""
    network, region, size = bounded.network, bounded.region, bounded.network.layers[j].size
    for part in torch.arange(size, device=network.device).split(bounded.rows):
        maps = network.maps(j, part)
        assert maps is not None
        a, constant = maps
        for i in range(len(region)):
            at = torch.full((len(part),), i, device=network.device)
            ends[0, i, part] = constant + region.minimum(a, at)[0]
            ends[1, i, part] = region.minimum(-a, at)[0] - constant


# Of the slopes: of each unit, and of each half of a split one; see docs/benchmarks/verification.md.
_STEPS, _HALF_STEPS = 5, 2
# With planes: steps of the slopes, then of the planes; columns of each layer that get one; units at a time.
_SLOPES, _PLANES, _COLUMNS, _TOGETHER = 20, 40, 48, 64
_KEPT = 9  # bytes of each column of a subdomain: the side it is on, its slope, its multiplier


def tighten(
    bounded: Bounded, which: list[Tensor], splits: int, expired: Callable[[], bool], *, planes: bool = False
) -> None:
    """Tighten each bound in `which` of an unstable neuron, layer by layer; bound each later layer again first.

    which: of each layer (2, n, size) bool. splits: of the branch and bound of each. planes: multi-neuron upper bounds in place of
    triangle bounds. Ends early when `expired`; all bounds hold at any time.
    """
    most = min(bounded.rows // 2, _TOGETHER) if planes else bounded.rows // 2
    touched = False
    for j, layer in enumerate(bounded.network.layers):
        if layer.decides_windows:
            bounded.tighten(j, *difference_bounds(bounded, j))
        if layer.direct or isinstance(layer.activation, Smooth) or not bounded.below(j):
            continue
        if touched:  # the layers below have tighter bounds now
            improve_layer(bounded, j, torch.ones_like(which[j]), _SLOPES if planes else 0)
        ends = torch.stack([bounded.low[j], -bounded.up[j]])
        open_ = (ends < 0).all(0) & which[j]
        touched = touched or bool(open_.any())
        together = max(1, min(most, bounded.memory // (_KEPT * (splits + 1) * bounded.below(j))))
        for spec, sample, unit, side in unit_rows(open_, together):
            if expired():
                break
            units = bounded.start(j, spec, sample)
            bounds, units = optimise(bounded, units, _SLOPES if planes else _STEPS, 0.0)
            if planes:
                units = with_planes(bounded, units, _PLANES, _COLUMNS)
                bounds = bounded.value(units, torch.float32)
            improved_bounds = _best_first(bounded, units, bounds, splits)
            ends[side, sample, unit] = torch.maximum(ends[side, sample, unit], improved_bounds)
        bounded.tighten(j, ends[0], -ends[1])
        if expired():
            return


def _best_first(bounded: Bounded, roots: LinearSpecs, bounds: Tensor, splits: int) -> Tensor:
    """float64 lower bounds (m,) of the rows after `splits` splits of each one's worst subdomain; a positive one is enough.

    bounds: float32 (m,), without splits.
    """
    m, device = len(roots), roots.spec.device
    best_bounds = torch.full((m, splits + 1), torch.inf, device=device)
    is_created = torch.zeros_like(best_bounds, dtype=torch.bool)  # not told by `found`: float32 can claim anything
    of_roots = roots.signs, roots.alpha, roots.beta
    stored = [torch.zeros(m, splits + 1, *t.shape[1:], dtype=t.dtype, device=device) for t in of_roots]

    def keep(row: Tensor, slot: Tensor, value: Tensor, rows: LinearSpecs) -> None:
        best_bounds[row, slot], is_created[row, slot] = value, True
        for store, of_rows in zip(stored, (rows.signs, rows.alpha, rows.beta), strict=True):
            store[row, slot] = of_rows

    def kept_at(row: Tensor, slot: Tensor) -> LinearSpecs:
        signs, alpha, beta = (store[row, slot] for store in stored)
        return replace(roots.at(row), signs=signs, alpha=alpha, beta=beta)

    every = torch.arange(m, device=device)
    keep(every, torch.zeros_like(every), bounds, roots)
    for split in range(1, splits + 1):
        bound, worst = best_bounds.min(1)
        row = (bound <= 0).nonzero().flatten()
        if not len(row):
            break
        rows = kept_at(row, worst[row])
        relaxation = bounded.relaxation(rows, torch.float32)
        back = bounded.backward(rows, relaxation, torch.float32)
        k, a = relaxation.kinks, back.coefficients
        score, column = ((1e-3 * a.abs() * k.up - a.clamp(max=0) * k.offset) * k.open).max(1)
        go = (score > 0).nonzero().flatten()
        if not len(go):
            break
        row, column = row[go], column[go]
        halves = children(rows.at(go), column, slope_gain(relaxation, back, go, column), relaxation.smooth)
        value, halves = optimise(bounded, halves, _HALF_STEPS, 0.0)
        value = torch.maximum(value, bound[row].repeat_interleave(2))
        sides = torch.arange(len(halves), device=device).view(-1, 2)
        keep(row, worst[row], value[sides[:, 0]], halves.at(sides[:, 0]))
        keep(row, torch.full_like(row, split), value[sides[:, 1]], halves.at(sides[:, 1]))
    exact = torch.full_like(best_bounds, torch.inf, dtype=torch.float64)
    row, slot_index = is_created.nonzero().unbind(1)
    # Few at a time, so that nearly all parts are of one size, which is recorded once.
    for part in torch.arange(len(row), device=device).split(max(1, m // 2)):
        exact[row[part], slot_index[part]] = bounded.value(kept_at(row[part], slot_index[part]))
    return exact.amin(1)
