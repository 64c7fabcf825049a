"""Planes above the ReLU of the largest number of a window of max pooling, where the numbers see a small part of the input.

Of numbers w_k x + b_k, of which 0 is one with w = 0 and b = 0, the largest is for any g at most

    g x + max over k of (b_k + max over the box of (w_k - g) x).

The line of a window (`maxpool_bounds.py`) is g x with the mean of the w_k by its weights for g, and from there ascent goes on as in
`relu_planes`. On a LeNet-5 trained normally (epsilon 0.01) margins of -0.24 and -0.33 become -0.14 and -0.26 in 2 s; the inner bounds
that they stand on gain more, a fifth of the offsets of the windows of the second pooling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.layer_bounds import LayerBounds
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import Windows, in_windows
from windtunnel.assessments.verification.branch_and_bound.planes import BLUR, Fitted, InputBoxes, Plane, widened_box
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs

_WINDOWS, _MEMORY = 64, 2**30  # whose weights are written out at a time, and bytes that this may take
_PART = 0.25  # of the input: what they may see
# Of the planes, and of the slopes beside them, where few steps must do: 10 of them for inner bounds of a LeNet bring margins from -0.61 and
# -0.33 to -0.49 and -0.17, with those of `relu_planes` to -0.56 and -0.25.
RATES, SLOPES = (1.0, 0.85), (0.2, 0.9)


@dataclass(frozen=True, slots=True)
class UnstableWindows:
    """Inputs of windows whose ReLU is unstable: int64 `units` (U,), and their four numbers and 0, K = 5 in all, as maps of a few inputs.

    seen: int64 (U, P), which inputs, and others where w is 0. w: float64 (U, K, P), b (U, K).
    """

    units: Tensor
    seen: Tensor
    w: Tensor
    b: Tensor

    def at(self, units: Tensor) -> UnstableWindows:
        """Select some of the units, in their order."""
        position = torch.searchsorted(self.units, units)
        return UnstableWindows(units, self.seen[position], self.w[position], self.b[position])


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
    """Return the numbers of the windows of layer j's columns.

    None where it does not follow windows of numbers that are affine in a small part of the input.
    """
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


def pieces_of(bounded: LayerBounds, j: int, numbers: UnstableWindows, windows: Windows) -> Pieces:
    """Return the weights and ranges of layer j's columns."""
    units = bounded.units[j]
    weights, out = windows.game_with_zero(units)
    return Pieces(numbers.at(units), weights, out, (bounded.up[j] - bounded.low[j])[:, units])


class OfLargest(Fitted):
    """Planes above the ReLUs of the largest numbers of windows, all of a layer."""

    def __init__(self, bounded: LayerBounds, rows: LinearSpecs, pieces: Pieces) -> None:
        middle, radius = widened_box(*bounded.box(0, rows.sample))
        numbers = pieces.numbers
        self._seen, self._inputs = numbers.seen, middle.shape[1]
        self._middle, self._radius = middle[:, numbers.seen], radius[:, numbers.seen]
        w = numbers.w * self._radius[:, :, None]
        self._unit = w.abs().mean((2, 3)).clamp(min=1e-30)
        w = w / self._unit[:, :, None, None]
        b = numbers.b + (numbers.w * self._middle[:, :, None]).sum(3)
        weights, out, spread = (t[rows.sample] for t in (pieces.weights, pieces.out, pieces.spread))
        self._pieces, self._out, self._blur = (w, b), out, (BLUR * spread).float()
        self._single = (w.float(), b.float())
        self._box = InputBoxes(middle.float(), radius.float(), self._unit.float())
        self._columns = torch.arange(len(numbers.seen), device=middle.device).expand(len(rows), -1)
        super().__init__(((weights[..., None] * w).sum(2).float(),), (numbers.w != 0).any(1), *RATES)

    def plane(self) -> Plane:
        """Return the planes of now, for the search for better ones."""
        value, self._over = self._values(self._now[0], *self._single, self._box.unit)
        self._first = torch.softmax(value / self._blur[..., None], 2)
        return Plane(self._columns, self._now[0], value.amax(2), self._box, self._seen, self._inputs)

    def best(self) -> Plane:
        """Return the best planes, their offsets in float64, for inputs as they are."""
        unit = self._unit[..., None]
        weights = (self._best[0].double() * unit / self._radius).float()
        exact = weights.double()
        value, _ = self._values(exact * self._radius / unit, *self._pieces, self._unit)
        offset = value.amax(2) - (exact * self._middle).sum(2)
        return Plane(self._columns, weights, offset, None, self._seen, self._inputs)

    def step(self, negative: Tensor, x: Tensor) -> None:
        """Ascend, given the coefficients of the columns (Q, U), none positive, and where the inputs lie in the box (Q, d)."""
        corner = (self._first[..., None] * self._over.sign_()).sum(2)
        by_weights = self._masked(negative[..., None] * (x[:, self._seen] - corner))
        self._now = (self._adam[0].step(self._now[0], by_weights),)

    def _values(self, g: Tensor, w: Tensor, b: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """(Q, U, K): by how much each number exceeds the plane at most, with what is left of its weights (Q, U, K, P)."""
        over = w - g[:, :, None]
        return (b + unit[..., None] * over.abs().sum(3)).masked_fill(self._out, -torch.inf), over
