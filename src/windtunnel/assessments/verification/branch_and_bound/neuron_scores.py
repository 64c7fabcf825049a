"""Which bounds of inner units a verdict hangs on: where the work of better ones is worth its time.

A chord lies above its ReLU by -l u / (u - l) at most: raising l by a little lowers that by u^2 / (u - l)^2 as much, lowering u by
l^2 / (u - l)^2; times the coefficient of the unit's output that is what a linear function gains. It gains from the bounds of deeper
units too, which gain from those before them: layer by layer backwards, this gives the derivative of the margins by every bound, and
times the width of the interval what there is to gain.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Smooth
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.receptive_fields import rows_of
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs


def influential(
    bounded: Bounded, margins: LinearSpecs, most: int, rows: int, *, together: bool = False
) -> tuple[list[Tensor], Tensor]:
    """(2, n, size) bool of each layer, low and up: the `most` bounds of each sample from which its margins have most to gain.

    And (n,), in [0, 1], which share they are of all that there is to gain.
    Only bounds that better slopes or splits below can improve. Smooth units have no chord: all of theirs count; the last kinks of windows
    (`maxpool_bounds.py`) have lines that hang on other bounds than their own: none of theirs do. rows: linear functions that are carried
    together. together: `most` linear functions, those of units of disjoint windows (`receptive.py`) counted as one.
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
            for part in _weighted(bounded, j, weights, rows):
                gain.add(part)
        scores.append(weights * (bounded.up[j] - bounded.low[j]).float())
    scores.reverse()
    row_of = [
        rows_of(network, j, rows) if together else torch.arange(layer.size, device=network.device)
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


def _weighted(bounded: Bounded, j: int, weights: Tensor, most: int) -> Iterator[LinearSpecs]:
    """Yield the units of layer j as linear functions, z and -z times their weights (2, n, size); as one for disjoint windows."""
    row_of = rows_of(bounded.network, j, most)
    side, sample, row = _summed(weights, row_of).nonzero().unbind(1)
    for part in torch.arange(len(row), device=weights.device).split(most) if len(row) else ():
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
            lost = lost.masked_fill(k.jumps.which, 0.0)
        for windows in self._bounded.windows_below(rows.start):
            windows.credit(lost, rows.sample, self.of_layer)
        for side, slope in enumerate((k.up, 1 - k.up)):
            self.total[side, :, : lost.shape[1]].index_add_(0, rows.sample, lost * slope**2)
