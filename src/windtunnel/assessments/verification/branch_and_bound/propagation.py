"""Linear bounds carried from a unit back to the input, and the bounding network evaluated forwards again.

Sources: CROWN (Zhang et al. 2018, arXiv 1811.00866), beta-CROWN (Wang et al. 2021, arXiv 2103.06624).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import (
    Kink,
    Kinks,
    Lines,
    Observed,
    Smooth,
    cells,
    kinks,
    smooth_lines,
    with_jumps,
    with_smooth,
)
from windtunnel.assessments.verification.branch_and_bound.layer_bounds import LayerBounds
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import (
    Pieces,
    UnstableWindows,
    Windows,
    numbers_of,
)
from windtunnel.assessments.verification.branch_and_bound.network import Network, gather
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm

_LARGEST = 2**20  # weights of a layer that are written out


@dataclass(frozen=True, slots=True)
class InputBoxes:
    """Input boxes of Q linear functions: middle, radius (Q, d); and the unit (Q, K) of the weights of K columns."""

    middle: Tensor
    radius: Tensor
    unit: Tensor


@dataclass(frozen=True, slots=True)
class Plane:
    """Upper planes of some columns of one layer, K for each of Q linear functions; the others have their chords.

    columns: int64 (Q, K), places among the layer's columns. weights: float32 (Q, K, d); offset: float64 (Q, K). A column is at most
    <weights, x> + offset at the input x. box: while planes are fitted weights are in its units, and x is measured in it.
    receptive: int64 (K, P), where the weights (Q, K, P) are of some of the `inputs` only, of each column its own.
    """

    columns: Tensor
    weights: Tensor
    offset: Tensor
    box: InputBoxes | None = None
    receptive: Tensor | None = None
    inputs: int = 0

    def carried(self, a: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Carry coefficients a (m, U) of the columns through the planes; which: (m,), of which of the Q functions each row is.

        Return (a of those without a plane, (m, d) of the input, (m, U) constants).
        """
        columns = self._of(self.columns, which)
        coefficients = a.gather(1, columns)
        constant = coefficients * self._of(self.offset, which).to(a)
        if self.box is None:
            carried_inputs = self._each(coefficients, which, transposed=False)
        else:
            coefficients = coefficients * self.box.unit
            carried_inputs = self._each(coefficients, which, transposed=False) / self.box.radius
            # All of them in one: while planes are fitted nobody asks for the columns' own, which would take another pass.
            constant[:, 0] -= (carried_inputs * self.box.middle).sum(1)
        return a.scatter(1, columns, 0.0), carried_inputs, torch.zeros_like(a).scatter(1, columns, constant)

    @classmethod
    def joined(cls, parts: Sequence[Plane]) -> Plane:
        """Concatenate the planes of all parts."""
        tensors = zip(*((p.columns, p.weights, p.offset) for p in parts), strict=True)
        columns, weights, offset = map(torch.cat, tensors)
        return replace(parts[0], columns=columns, weights=weights, offset=offset)

    def bent(self, lines: Tensor, x: Tensor, where: Tensor, which: Tensor) -> Tensor:
        """Return the lines (m, U) that columns take, those with a plane at the inputs x (m, d) where `where` is 1."""
        columns = self._of(self.columns, which)
        value = self._each(self.inside(x), which, transposed=True)
        value = (value if self.box is None else value * self.box.unit) + self._of(self.offset, which).to(x)
        return lines.scatter(1, columns, torch.lerp(lines.gather(1, columns), value, where.gather(1, columns)))

    def inside(self, x: Tensor) -> Tensor:
        """Return inputs x (m, d), in [-1, 1] where they are measured in a box."""
        return x if self.box is None else (x - self.box.middle) / self.box.radius

    @staticmethod
    def _of(values: Tensor, which: Tensor) -> Tensor:
        """Select for each row the values of its function."""
        return values.expand(len(which), *values.shape[1:]) if len(values) == 1 else values[which]

    def _each(self, values: Tensor, which: Tensor, *, transposed: bool) -> Tensor:
        """Each row of values times the weights of its function, or times their transposes."""
        if self.receptive is not None:
            weights = self._of(self.weights, which).to(values)
            if transposed:
                return (weights * values[:, self.receptive]).sum(2)
            products = values.new_zeros(len(values), self.inputs)
            return products.index_add_(1, self.receptive.flatten(), (weights * values[:, :, None]).flatten(1))

        def turned(weights: Tensor) -> Tensor:  # converted last: all of them in float64 would be much to copy
            return (weights.mT if transposed else weights).to(values)

        present, count = which.unique_consecutive(return_counts=True)
        if len(present) == 1:
            return values @ turned(self.weights[int(present[0])])
        if len(present) <= len(self.weights) and bool((count == count[0]).all()):
            # As of inner units, each a function with a few rows that lie side by side.
            is_all = torch.equal(present, torch.arange(len(self.weights), device=present.device))
            chosen = self.weights if is_all else self.weights.index_select(0, present)
            return torch.bmm(values.view(len(present), -1, values.shape[1]), turned(chosen)).flatten(0, 1)
        products = values.new_empty(len(values), self.weights.shape[1 if transposed else 2])
        for q in which.unique().tolist():
            at = (which == q).nonzero().flatten()
            products[at] = values[at] @ turned(self.weights[q])
        return products


@dataclass(frozen=True, slots=True)
class LinearSpecs:
    """m linear functions of one node to be bounded, each in one subdomain of one region.

    start: the node (the input of an activation, or the output). spec: (m, size of the node). sample: int64 (m,), its region.
    signs: int8 (m, C), +1 where a unit is taken as active, -1 as inactive, 0 where it is not split; of a smooth one its cell
    (`activations.cells`). alpha: (m, C), in [0, 1], between the least and the largest lower slope of an open unit. beta: (m, C),
    the multiplier >= 0 of each split. C: the columns below the node. planes: of some layers the upper bounds of open units instead
    of chords, for as many linear functions as there are; plane: int64 (m,), which of them a row is.
    """

    start: int
    spec: Tensor
    sample: Tensor
    signs: Tensor
    alpha: Tensor
    beta: Tensor
    planes: Mapping[int, Plane] = field(default_factory=dict)
    plane: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.spec)

    @classmethod
    def joined(cls, parts: Sequence[LinearSpecs]) -> LinearSpecs:
        """LinearSpecs of one node, one after the other; each with its planes, where all parts have some."""
        tensors = zip(*((r.spec, r.sample, r.signs, r.alpha, r.beta) for r in parts), strict=True)
        spec, sample, signs, alpha, beta = map(torch.cat, tensors)
        joined = cls(parts[0].start, spec, sample, signs, alpha, beta)
        if not all(part.planes for part in parts):
            return joined
        planes = {j: Plane.joined([part.planes[j] for part in parts]) for j in parts[0].planes}
        functions = [len(next(iter(part.planes.values())).offset) for part in parts]
        starts = [0, *accumulate(functions[:-1])]
        plane = torch.cat([part.plane + start for part, start in zip(parts, starts, strict=True)])
        return replace(joined, planes=planes, plane=plane)

    def at(self, index: Tensor) -> LinearSpecs:
        """Return the rows at `index`, int64 or bool."""
        index = index.nonzero().flatten() if index.dtype == torch.bool else index
        # On a processor several times as fast as brackets.
        spec, sample, signs, alpha, beta = (
            t.index_select(0, index) for t in (self.spec, self.sample, self.signs, self.alpha, self.beta)
        )
        plane = self.plane[index] if self.planes else self.plane
        return LinearSpecs(self.start, spec, sample, signs, alpha, beta, self.planes, plane)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear bounds of every layer below the start of some rows, in each row's subdomain.

    fixed: of each layer the slopes of the units that are linear, (m, size) or (1, size), anything at columns. kinks: of the
    columns. split: the columns at which some row is split, of each layer (their places in the layer's columns, their places
    in all). sides, thresholds: (m, C), a split column's input z obeys side (z - threshold) >= 0; thresholds None for all 0.
    """

    fixed: list[Tensor]
    kinks: Kinks
    split: list[tuple[Tensor, Tensor] | None]
    sides: Tensor
    thresholds: Tensor | None

    @property
    def smooth(self) -> Tensor | None:
        """Return the columns of smooth activations, bool (1, C); None where there are none."""
        return self.kinks.jumps.smooth if self.kinks.jumps is not None else None


@dataclass(frozen=True, slots=True)
class BackwardBound:
    """Result of a backward pass.

    constant (m,), or (m, M) of the units of a group, and inputs (m, d): the lower bound is constant + <inputs, x>.
    coefficients: (m, C) of the columns' outputs, which say which line was taken.
    """

    constant: Tensor
    inputs: Tensor
    coefficients: Tensor


class Bounded(LayerBounds):
    """Bounds of the layers, and the passes that carry linear functions to the input with them."""

    def __init__(self, network: Network, region: BallRegions, rows: int, memory: int) -> None:
        self._affine: dict[int, tuple[Tensor, Tensor] | None] = {}
        self._windows: dict[tuple[int, bool], Windows] = {}
        self._pieces: dict[int, Pieces] = {}
        # Of the columns that were open first: later ones are among them.
        self._numbers: dict[int, UnstableWindows | None] = {}
        super().__init__(network, region, rows, memory)

    def part(self, members: Tensor) -> Bounded:
        """Return the samples `members`, int64, alone."""
        selected = Bounded(self.network, self.region.part(members), self.rows, self.memory)
        selected.low, selected.up = [low[members] for low in self.low], [up[members] for up in self.up]
        selected._numbers = dict(self._numbers)
        selected._refresh()
        return selected

    def _refresh(self) -> None:
        self._affine.clear()
        self._windows.clear()
        self._pieces.clear()
        super()._refresh()

    def start(self, node: int, spec: Tensor, sample: Tensor) -> LinearSpecs:
        """Undivided rows with CROWN's slopes: 1 where the upper bound is the larger."""
        low, up = (t[:, : self.below(node)] for t in self._at_columns[:2])
        alpha = (up > -low)[sample].float()
        signs, beta = torch.zeros_like(alpha, dtype=torch.int8), torch.zeros_like(alpha)
        return LinearSpecs(node, spec, sample, signs, alpha, beta)

    @property
    def is_dense(self) -> bool:
        """Return whether the units of the first layer see most of the input: what serves a dense network best differs."""
        affine = self.affine(0) if self.units else None
        return affine is not None and 2 * int(affine[0].count_nonzero()) > affine[0].numel()

    def affine(self, j: int) -> tuple[Tensor, Tensor] | None:
        """(w float64 (U, d), b (U,)): the inputs of layer j's columns are w x + b of the network's input x.

        None where that is not so, where the layer is no ReLU or has none that is open, or where w has more than 2^20 numbers.
        """
        if j not in self._affine:
            layer, units = self.network.layers[j], self.units[j]
            is_relu = isinstance(layer.activation, Kink) and not bool(layer.activation.slope.any())
            is_small = 0 < len(units) * self.network.inputs <= _LARGEST
            # Planes take the place of single chords, which the kinks before those that decide windows have not.
            is_single = j + 1 == len(self.network.layers) or not self.network.layers[j + 1].decides_windows
            has_map = is_relu and layer.direct and is_small and is_single
            self._affine[j] = self.network.maps(j, units) if has_map else None
        return self._affine[j]

    def pieces(self, j: int) -> Pieces | None:
        """Return the start of planes above layer j's columns; None but where it follows windows that see a small part of a box."""
        if self.region.norm is not Norm.LINF:
            return None
        if j not in self._numbers:
            self._numbers[j] = numbers_of(self, j)
        numbers, units = self._numbers[j], self.units[j]
        if not numbers or not len(units):
            return None
        if j not in self._pieces:
            game, spread = self.windows(j - 1, j + 1).game_with_zero(units), (self.up[j] - self.low[j])[:, units]
            self._pieces[j] = Pieces(numbers.at(units), *game, spread)
        return self._pieces[j]

    def relaxation(self, rows: LinearSpecs, dtype: torch.dtype) -> Relaxation:
        """Return the linear bounds of every layer below the rows' node, in each row's subdomain."""
        count, is_single = self.below(rows.start), len(self.region) == 1
        low, up, least = (t[:, :count].to(dtype) for t in self._at_columns)
        if not is_single:
            low, up = low.index_select(0, rows.sample), up.index_select(0, rows.sample)
        split: list[tuple[Tensor, Tensor] | None] = [None] * rows.start
        if bool(rows.signs.any()):
            signs = rows.signs.clamp(-1, 1).to(dtype)
            low = low + signs.clamp(min=0) * (-low).clamp(min=0)
            up = up + signs.clamp(max=0) * up.clamp(min=0)
            touched = rows.signs.any(0)
            for j, at in enumerate(self.slices[: rows.start]):
                places = touched[at].nonzero().flatten()
                split[j] = (places, places + at.start) if len(places) else None
        fixed = [self._linear(j, dtype) for j in range(rows.start)]
        if not is_single:
            fixed = [f[rows.sample] for f in fixed]
        relaxed = kinks(low, up, least)
        if self._errors_at_columns is not None:
            relaxed = with_jumps(relaxed, low, up, self._errors_at_columns[:, :count].to(dtype))
        for windows in self.windows_below(rows.start):
            windows.apply_maxpool_bounds(relaxed, rows.signs, None if is_single else rows.sample)
        sides, thresholds = rows.signs.to(dtype), None
        smooth = list[tuple[slice, Lines, Tensor]]()
        for j, layer in enumerate(self.network.layers[: rows.start]):
            if isinstance(layer.activation, Smooth):
                at, code = self.slices[j], rows.signs[:, self.slices[j]]
                lines, ends = self._smooth(j, layer.activation, rows.sample, code, dtype)
                smooth.append((at, lines, code))
                if ends is not None:
                    thresholds = torch.zeros_like(sides) if thresholds is None else thresholds
                    is_upper = code % 2 == 1
                    sides[:, at] = torch.where(code == 0, 0.0, torch.where(is_upper, 1.0, -1.0)).to(dtype)
                    thresholds[:, at] = torch.where(is_upper, *ends).to(dtype)
        return Relaxation(fixed, with_smooth(relaxed, smooth) if smooth else relaxed, split, sides, thresholds)

    def _smooth(
        self, j: int, activation: Smooth, sample: Tensor, code: Tensor, dtype: torch.dtype
    ) -> tuple[Lines, tuple[Tensor, Tensor] | None]:
        """(lines of smooth layer j, (m, size) or (1, size); the ends of the cells `code` (m, size), None where none is split)."""
        now = list(self.lines(j))
        row, unit = code.nonzero().unbind(1)
        if len(self.region) > 1 or len(row):
            now = [t[sample] for t in now]
        if not len(row):
            return Lines(*(t.to(dtype) for t in now)), None
        low, up = cells(self.low[j][sample], self.up[j][sample], code)
        error = self._errors[j][unit] if j in self._errors else 0.0
        part = smooth_lines(activation, low[row, unit], up[row, unit], error)
        for t, split in zip(now, part, strict=True):
            t[row, unit] = split
        return Lines(*(t.to(dtype) for t in now)), (low, up)

    def windows_below(self, node: int) -> Iterator[Windows]:
        """Yield the windows of every layer before `node` that decides some."""
        for j, layer in enumerate(self.network.layers[:node]):
            if layer.decides_windows:
                yield self.windows(j, node)

    def windows(self, last: int, node: int) -> Windows:
        """Return the windows of layer `last`, for functions of `node`; remembered until bounds change."""
        key = (last, node > last + 1)
        if key not in self._windows:
            self._windows[key] = Windows(self, last, node)
        return self._windows[key]

    def backward(
        self,
        rows: LinearSpecs,
        relaxation: Relaxation,
        dtype: torch.dtype,
        owners: Sequence[Tensor] | None = None,
        begun: Sequence[Tensor | None] | None = None,
    ) -> BackwardBound:
        """Carry the rows to the input with their slopes and multipliers.

        owners: of the group of units whose sum each row is, see `grouped_crown.Group`; then the constants are (m, M), each unit's own.
        begun: gradients of the rows by the leaves, where they are known.
        """
        m, start, device = len(rows), rows.start, self.network.device
        tape, k = self.network.tape(m, dtype), relaxation.kinks
        lower = k.base + k.rise * rows.alpha.to(dtype)
        pending: list[Tensor | None] = [None] * (start + 1)
        constant = torch.zeros(m, *owners[0].shape[1:] if owners else (), dtype=dtype, device=device)
        columns: list[Tensor] = []

        def total(terms: Tensor, node: int, units: Tensor | None = None) -> Tensor:
            """Sum the terms (m, size of the node, or of some `units` of it) of each row, or of each unit that it is a sum of."""
            if owners is None:
                return terms.sum(1)
            owner = owners[node + 1]
            return terms @ (owner if units is None else owner[units])

        def push(node: int, a: Tensor, gradients: Sequence[Tensor | None] | None = None) -> None:
            nonlocal constant
            offset = tape.node(node)[0].detach().flatten()
            constant = constant + (a @ offset if owners is None else total(a * offset, node))
            gather(pending, tape.gradients(node, a) if gradients is None else gradients)

        push(start, rows.spec.to(dtype), begun)
        for j in reversed(range(start)):
            if isinstance(self.network.layers[j].activation, Observed):
                continue
            fixed, units, at = relaxation.fixed[j], self.units[j], self.slices[j]
            a = pending[j + 1]
            pending[j + 1] = None
            if a is None:
                a = torch.zeros(m, self.network.layers[j].size, dtype=dtype, device=device)
            pushed = a * fixed
            if len(units):
                coefficients_in = a.index_select(1, units)
                columns.append(coefficients_in)
                negative = coefficients_in.clamp(max=0)
                new = (coefficients_in - negative) * lower[:, at]
                if plane := rows.planes.get(j):
                    bent = negative * k.open[:, at]
                    flat, carried, offset = plane.carried(bent, rows.plane)
                    constant, negative = constant + total(offset, j, units), negative - (bent - flat)
                    pending[0] = carried if pending[0] is None else pending[0] + carried
                constant = constant + total(negative * k.offset[:, at], j, units)
                if k.jumps is not None:
                    positive = coefficients_in.clamp(min=0)
                    constant = constant + total(positive * k.jumps.low_offset[:, at], j, units)
                new = new + negative * k.up[:, at]
                split = relaxation.split[j]
                if split is not None:
                    places, all_ = split
                    if k.jumps is not None:  # where a jump is split its input may be off
                        constant = constant - rows.beta[:, all_].to(dtype) @ k.jumps.error[0, all_]
                    sides = rows.beta.index_select(1, all_).to(dtype) * relaxation.sides.index_select(1, all_)
                    if relaxation.thresholds is not None:
                        constant = constant + (sides * relaxation.thresholds.index_select(1, all_)).sum(1)
                    new.index_add_(1, places, sides, alpha=-1)
                pushed.index_copy_(1, units, new)
            push(j, pushed)
        inputs = pending[0]
        if inputs is None:
            inputs = torch.zeros(m, self.network.inputs, dtype=dtype, device=device)
        coefficients = torch.cat(columns[::-1], 1) if columns else rows.alpha[:, :0].to(dtype)
        return BackwardBound(constant, inputs, coefficients)

    def forward(
        self, x: Tensor, rows: LinearSpecs, relaxation: Relaxation, back: BackwardBound
    ) -> tuple[Tensor, Tensor]:
        """Return (inputs, outputs) (m, C) of the columns at x (m, d), where every activation is the line that `back` took for it."""
        k = relaxation.kinks
        is_lower = back.coefficients.sign().add_(1).mul_(0.5)
        slope = torch.lerp(k.up, k.base + k.rise * rows.alpha.to(x), is_lower)
        offset = k.offset * (1 - is_lower)
        if k.jumps is not None:
            offset = offset + k.jumps.low_offset * is_lower
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def answer(j: int, z: Tensor) -> Tensor:
            flat, fixed, units, at = z.flatten(1), relaxation.fixed[j], self.units[j], self.slices[j]
            value = flat * fixed
            if len(units):
                preactivations = flat.index_select(1, units)
                inputs.append(preactivations)
                line = torch.addcmul(offset[:, at], slope[:, at], preactivations)
                if plane := rows.planes.get(j):
                    where = (1 - is_lower[:, at]) * k.open[:, at]
                    line = plane.bent(line, x, where, rows.plane)
                outputs.append(line)
                value.index_copy_(1, units, line)
            return value.view(z.shape)

        self.network.run(x.view(-1, *self.network.input_shape), answer, upto=rows.start)
        if not inputs:
            return rows.alpha[:, :0].to(x), rows.alpha[:, :0].to(x)
        return torch.cat(inputs, 1), torch.cat(outputs, 1)

    def value(self, rows: LinearSpecs, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the lower bounds (m,) of the rows, by one pass in `dtype`: valid for any alpha in [0, 1] and any beta >= 0."""
        back = self.backward(rows, self.relaxation(rows, dtype), dtype)
        return back.constant + self.region.minimum(back.inputs, rows.sample)[0]
