"""Linear bounds carried from a unit back to the input, and the bounding network evaluated forwards again.

Sources: CROWN (Zhang et al. 2018, arXiv 1811.00866), beta-CROWN (Wang et al. 2021, arXiv 2103.06624).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Kink, Observed, Smooth
from windtunnel.assessments.verification.branch_and_bound.network import Network, gather
from windtunnel.assessments.verification.branch_and_bound.planes import Plane
from windtunnel.assessments.verification.branch_and_bound.planes_of_windows import (
    Numbers,
    Pieces,
    numbers_of,
    pieces_of,
)
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.assessments.verification.branch_and_bound.relaxations import Kinks, Lines, kinks, smooth_lines
from windtunnel.assessments.verification.branch_and_bound.windows import Windows
from windtunnel.core.contracts import Norm

_LARGEST = 2**20  # weights of a layer that are written out


@dataclass(frozen=True, slots=True)
class Rows:
    """m linear functions of one node to be bounded, each in one subdomain of one region.

    start: the node (the input of an activation, or the output). spec: (m, size of the node). sample: int64 (m,), its region.
    signs: int8 (m, C), +1 where a unit is taken as active, -1 as inactive, 0 where it is not split. alpha: (m, C), in
    [0, 1], between the least and the largest lower slope of an open unit. beta: (m, C), the multiplier >= 0 of each split.
    C: the columns below the node. planes: of some layers the upper bounds of open units instead of chords, for as many linear
    functions as there are; plane: int64 (m,), which of them a row is.
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
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Rows of one node, one after the other; each with its planes, where all parts have some."""
        spec, sample, signs, alpha, beta = (
            torch.cat(of)
            for of in zip(*((r.spec, r.sample, r.signs, r.alpha, r.beta) for r in parts), strict=True)
        )  # fmt: skip
        found = cls(parts[0].start, spec, sample, signs, alpha, beta)
        if not all(part.planes for part in parts):
            return found
        planes = {j: Plane.joined([part.planes[j] for part in parts]) for j in parts[0].planes}
        functions = [len(next(iter(part.planes.values())).offset) for part in parts]
        starts = [0, *accumulate(functions[:-1])]
        plane = torch.cat([part.plane + start for part, start in zip(parts, starts, strict=True)])
        return replace(found, planes=planes, plane=plane)

    def at(self, index: Tensor) -> Rows:
        """The rows at `index`, int64 or bool."""
        index = index.nonzero().flatten() if index.dtype == torch.bool else index
        # On a processor several times as fast as brackets.
        spec, sample, signs, alpha, beta = (
            t.index_select(0, index) for t in (self.spec, self.sample, self.signs, self.alpha, self.beta)
        )
        plane = self.plane[index] if self.planes else self.plane
        return Rows(self.start, spec, sample, signs, alpha, beta, self.planes, plane)

    def with_multipliers(self, alpha: Tensor, beta: Tensor) -> Rows:
        """The same rows with other multipliers."""
        return replace(self, alpha=alpha, beta=beta)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear bounds of every layer below the start of some rows, in each row's subdomain.

    fixed: of each layer the slopes of the units that are linear, (m, size) or (1, size), anything at columns; or the lines of
    a smooth layer. kinks: of the columns. split: the columns at which some row is split, of each layer (their places in the
    layer's columns, their places in all).
    """

    fixed: list[Tensor | Lines]
    kinks: Kinks
    split: list[tuple[Tensor, Tensor] | None]


@dataclass(frozen=True, slots=True)
class Back:
    """What a backward pass found.

    constant (m,), or (m, M) of the units of a group, and inputs (m, d): the lower bound is constant + <inputs, x>.
    coefficients: (m, C) of the columns' outputs. chosen: of a smooth layer the coefficients of its output, which say which line was taken.
    """

    constant: Tensor
    inputs: Tensor
    coefficients: Tensor
    chosen: dict[int, Tensor]


class Bounded:
    """A network over the regions of n samples, with what is known of the inputs of its activations.

    low, up: for each layer that is bounded so far, float64 (n, size). The units that can be split, those that are unstable
    in at least one sample, are its C columns, in the order of layers. units: of each layer, int64 indices. slices: of each
    layer, its columns.
    """

    def __init__(self, network: Network, region: Region) -> None:
        self.network, self.region = network, region
        self.low: list[Tensor] = []
        self.up: list[Tensor] = []
        self.units: list[Tensor] = []
        self.slices: list[slice] = []
        self._at_columns: tuple[Tensor, Tensor, Tensor]
        self._fixed: dict[tuple[int, torch.dtype], Tensor | Lines] = {}
        self._affine: dict[int, tuple[Tensor, Tensor] | None] = {}
        self._windows: dict[tuple[int, bool], Windows] = {}
        self._pieces: dict[int, Pieces | None] = {}
        self._numbers: dict[int, Numbers | None] = {}  # of the columns that were open first: later ones are among them
        self._refresh()

    def add(self, low: Tensor, up: Tensor) -> None:
        """Bounds of the next layer, in float64 and as they were computed."""
        low, up = _with_room(low, up)
        self.low.append(low)
        self.up.append(up)
        self._refresh()

    def tighten(self, j: int, low: Tensor, up: Tensor) -> None:
        """Other bounds of layer j, of which the tighter counts; given as `add` takes them. The columns are others afterwards."""
        low, up = _with_room(low, up)
        self.low[j] = torch.maximum(self.low[j], low)
        self.up[j] = torch.minimum(self.up[j], up)
        self._refresh()

    def part(self, members: Tensor) -> Bounded:
        """The samples `members`, int64, alone."""
        found = Bounded(self.network, self.region.part(members))
        found.low, found.up = [low[members] for low in self.low], [up[members] for up in self.up]
        found._numbers = dict(self._numbers)
        found._refresh()
        return found

    def _refresh(self) -> None:
        self._fixed.clear()
        self._affine.clear()
        self._windows.clear()
        self._pieces.clear()
        self.units, self.slices, end = [], [], 0
        nothing = torch.empty(0, dtype=torch.int64, device=self.network.device)
        parts: list[list[Tensor]] = [[], [], []]
        for layer, low, up in zip(self.network.layers, self.low, self.up, strict=False):
            units = ((low < 0) & (up > 0)).any(0).nonzero().flatten() if layer.splits else nothing
            self.units.append(units)
            self.slices.append(slice(end, end := end + len(units)))
            parts[0].append(low[:, units])
            parts[1].append(up[:, units])
            if isinstance(layer.activation, Kink):
                slope = layer.activation.slope.to(low).expand(1, *layer.shape).reshape(-1)
                parts[2].append(slope[units][None])
        empty = torch.empty(len(self.region), 0, dtype=torch.float64, device=self.network.device)
        low, up, least = (torch.cat(p, 1) if p else empty[: 1 if k == 2 else None] for k, p in enumerate(parts))
        self._at_columns = (low, up, least)

    def below(self, node: int) -> int:
        """How many columns lie below `node`."""
        return self.slices[node - 1].stop if node else 0

    def columns(self, j: int) -> Tensor:
        """int64 (size,): the columns of the units of layer j, -1 where a unit is none."""
        found = torch.full((self.network.layers[j].size,), -1, device=self.network.device)
        found[self.units[j]] = torch.arange(self.slices[j].start, self.slices[j].stop, device=found.device)
        return found

    def start(self, node: int, spec: Tensor, sample: Tensor) -> Rows:
        """Undivided rows with CROWN's slopes: 1 where the upper bound is the larger."""
        low, up = (t[:, : self.below(node)] for t in self._at_columns[:2])
        alpha = (up > -low)[sample].float()
        return Rows(node, spec, sample, torch.zeros_like(alpha, dtype=torch.int8), alpha, torch.zeros_like(alpha))

    def at_columns(self, j: int, sample: Tensor) -> tuple[Tensor, Tensor]:
        """(low, up) of layer j's columns, float64 (m, U), in the regions `sample` (m,)."""
        units = self.units[j]
        return self.low[j][sample][:, units], self.up[j][sample][:, units]

    def box(self, leaf: int, sample: Tensor) -> tuple[Tensor, Tensor]:
        """(middle, radius), float64 (m, n), of what a leaf takes in the regions `sample` (m,): the input, or an activation."""
        if leaf == 0:
            low, high = self.region.low[sample], self.region.high[sample]
        else:
            low, high = self._taken(leaf - 1, sample)
        return (low + high) / 2, (high - low) / 2 + 1e-12

    def _taken(self, j: int, sample: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high), float64 (m, n), of the outputs of layer j in the regions `sample` (m,)."""
        activation, shape = self.network.layers[j].activation, (-1, *self.network.layers[j].shape)
        low, up = self.low[j][sample], self.up[j][sample]
        if isinstance(activation, Observed):
            return low, up
        if isinstance(activation, Kink):
            # Convex: least at an end or at the kink, which a negative slope makes the bottom.
            ends = [activation(z.view(shape)).flatten(1) for z in (low, up, low.clamp(min=0).minimum(up))]
            return torch.stack(ends).amin(0), torch.maximum(ends[0], ends[1])
        lines = self._linear(j, torch.float64)
        assert isinstance(lines, Lines)
        lines = lines.at(sample)
        below, above = (
            (slope * low + offset, slope * up + offset)
            for slope, offset in ((lines.low, lines.low_offset), (lines.up, lines.up_offset))
        )
        return torch.minimum(*below), torch.maximum(*above)

    @property
    def is_dense(self) -> bool:
        """Whether the units of the first layer see most of the input: what serves a dense network best differs."""
        found = self.affine(0) if self.units else None
        return found is not None and 2 * int(found[0].count_nonzero()) > found[0].numel()

    def affine(self, j: int) -> tuple[Tensor, Tensor] | None:
        """(w float64 (U, d), b (U,)): the inputs of layer j's columns are w x + b of the network's input x.

        None where that is not so, where the layer is no ReLU or has none that is open, or where w has more than 2^20 numbers.
        """
        if j not in self._affine:
            self._affine[j] = self._find_affine(j)
        return self._affine[j]

    def _find_affine(self, j: int) -> tuple[Tensor, Tensor] | None:
        layer, units = self.network.layers[j], self.units[j]
        if not isinstance(layer.activation, Kink) or bool(layer.activation.slope.any()) or not len(units):
            return None
        if not layer.direct or len(units) * self.network.inputs > _LARGEST:
            return None
        if j + 1 < len(self.network.layers) and self.network.layers[j + 1].decides_windows:
            return None  # planes take the place of single chords
        return self.network.maps(j, units)

    def pieces(self, j: int) -> Pieces | None:
        """What planes above layer j's columns start from, where it follows windows of numbers that see a small part of a box."""
        if self.region.norm is not Norm.LINF:
            return None
        if j not in self._numbers:
            self._numbers[j] = numbers_of(self, j)
        numbers = self._numbers[j]
        if j not in self._pieces:
            self._pieces[j] = pieces_of(self, j, numbers) if numbers and len(self.units[j]) else None
        return self._pieces[j]

    def relaxation(self, rows: Rows, dtype: torch.dtype) -> Relaxation:
        """The linear bounds of every layer below the rows' node, in each row's subdomain."""
        count, one = self.below(rows.start), len(self.region) == 1
        low, up, least = (t[:, :count].to(dtype) for t in self._at_columns)
        if not one:
            low, up = low.index_select(0, rows.sample), up.index_select(0, rows.sample)
        split: list[tuple[Tensor, Tensor] | None] = [None] * rows.start
        if bool(rows.signs.any()):
            signs = rows.signs.to(dtype)
            low = low + signs.clamp(min=0) * (-low).clamp(min=0)
            up = up + signs.clamp(max=0) * up.clamp(min=0)
            touched = rows.signs.any(0)
            for j, at in enumerate(self.slices[: rows.start]):
                places = touched[at].nonzero().flatten()
                split[j] = (places, places + at.start) if len(places) else None
        fixed = [self._linear(j, dtype) for j in range(rows.start)]
        if not one:
            fixed = [f.at(rows.sample) if isinstance(f, Lines) else f[rows.sample] for f in fixed]
        found = kinks(low, up, least)
        for windows in self.windows_below(rows.start):
            windows.bend(found, rows.signs, None if one else rows.sample)
        return Relaxation(fixed, found, split)

    def windows_below(self, node: int) -> Iterator[Windows]:
        """The windows of every layer before `node` that decides some."""
        for j, layer in enumerate(self.network.layers[:node]):
            if layer.decides_windows:
                yield self.windows(j, node)

    def windows(self, last: int, node: int) -> Windows:
        """Those of layer `last`, for functions of `node`; remembered until bounds change."""
        key = (last, node > last + 1)
        if key not in self._windows:
            self._windows[key] = Windows(self, last, node)
        return self._windows[key]

    def _linear(self, j: int, dtype: torch.dtype) -> Tensor | Lines:
        """Of all n samples, remembered until bounds change."""
        if (j, dtype) not in self._fixed:
            activation, low, up = self.network.layers[j].activation, self.low[j], self.up[j]
            if isinstance(activation, Observed):
                self._fixed[j, dtype] = low.new_zeros(len(low), 1, dtype=dtype)
            elif isinstance(activation, Smooth):
                self._fixed[j, dtype] = smooth_lines(activation, low, up).to(dtype)
            else:
                slope = activation.slope.to(low).expand(1, *self.network.layers[j].shape).reshape(1, -1)
                self._fixed[j, dtype] = torch.where(low >= 0, 1.0, slope).to(dtype)
        return self._fixed[j, dtype]

    def backward(
        self,
        rows: Rows,
        relaxation: Relaxation,
        dtype: torch.dtype,
        owners: Sequence[Tensor] | None = None,
        begun: Sequence[Tensor | None] | None = None,
    ) -> Back:
        """Carry the rows to the input with their slopes and multipliers.

        owners: of the group of units whose sum each row is, see `receptive`; then the constants are (m, M), each unit's own.
        begun: gradients of the rows by the leaves, where they are known.
        """
        m, start, device = len(rows), rows.start, self.network.device
        tape, k = self.network.tape(m, dtype), relaxation.kinks
        lower = k.base + k.rise * rows.alpha.to(dtype)
        held: list[Tensor | None] = [None] * (start + 1)
        constant = torch.zeros(m, *owners[0].shape[1:] if owners else (), dtype=dtype, device=device)
        chosen: dict[int, Tensor] = {}
        columns: list[Tensor] = []

        def total(terms: Tensor, node: int, units: Tensor | None = None) -> Tensor:
            """Of each row, or of each of the units that it is a sum of; terms (m, size of the node, or of some `units` of it)."""
            if owners is None:
                return terms.sum(1)
            own = owners[node + 1]
            return terms @ (own if units is None else own[units])

        def push(node: int, a: Tensor, gradients: Sequence[Tensor | None] | None = None) -> None:
            nonlocal constant
            shift = tape.node(node)[0].detach().flatten()
            constant = constant + (a @ shift if owners is None else total(a * shift, node))
            gather(held, tape.gradients(node, a) if gradients is None else gradients)

        push(start, rows.spec.to(dtype), begun)
        for j in reversed(range(start)):
            if isinstance(self.network.layers[j].activation, Observed):
                continue
            fixed, units, at = relaxation.fixed[j], self.units[j], self.slices[j]
            a = held[j + 1]
            held[j + 1] = None
            if a is None:
                a = torch.zeros(m, self.network.layers[j].size, dtype=dtype, device=device)
            if isinstance(fixed, Lines):
                chosen[j] = a
                negative = a.clamp(max=0)
                positive = a - negative
                constant = constant + total(positive * fixed.low_offset + negative * fixed.up_offset, j)
                push(j, positive * fixed.low + negative * fixed.up)
                continue
            pushed = a * fixed
            if len(units):
                some = a.index_select(1, units)
                columns.append(some)
                negative = some.clamp(max=0)
                new = (some - negative) * lower[:, at]
                if plane := rows.planes.get(j):
                    bent = negative * k.open[:, at]
                    flat, carried, offset = plane.carried(bent, rows.plane)
                    constant, negative = constant + total(offset, j, units), negative - (bent - flat)
                    held[0] = carried if held[0] is None else held[0] + carried
                constant = constant + total(negative * k.offset[:, at], j, units)
                new = new + negative * k.up[:, at]
                split = relaxation.split[j]
                if split is not None:
                    places, all_ = split
                    new.index_add_(
                        1,
                        places,
                        rows.beta.index_select(1, all_).to(dtype) * rows.signs.index_select(1, all_),
                        alpha=-1,
                    )
                pushed.index_copy_(1, units, new)
            push(j, pushed)
        inputs = held[0]
        if inputs is None:
            inputs = torch.zeros(m, self.network.inputs, dtype=dtype, device=device)
        coefficients = torch.cat(columns[::-1], 1) if columns else rows.alpha[:, :0].to(dtype)
        return Back(constant, inputs, coefficients, chosen)

    def forward(self, x: Tensor, rows: Rows, relaxation: Relaxation, back: Back) -> tuple[Tensor, Tensor]:
        """(inputs, outputs) (m, C) of the columns at x (m, d), where every activation is the line that `back` took for it."""
        k = relaxation.kinks
        taken = back.coefficients.sign().add_(1).mul_(0.5)
        slope = torch.lerp(k.up, k.base + k.rise * rows.alpha.to(x), taken)
        offset = k.offset * (1 - taken)
        found: list[Tensor] = []
        outputs: list[Tensor] = []

        def answer(j: int, z: Tensor) -> Tensor:
            return taken_for(j, z).view(z.shape)

        def taken_for(j: int, z: Tensor) -> Tensor:
            flat, fixed, units, at = z.flatten(1), relaxation.fixed[j], self.units[j], self.slices[j]
            if isinstance(fixed, Lines):
                side = back.chosen[j].sign().add_(1).mul_(0.5)
                slopes, offsets = (
                    torch.lerp(fixed.up, fixed.low, side),
                    torch.lerp(fixed.up_offset, fixed.low_offset, side),
                )
                return torch.addcmul(offsets, slopes, flat)
            value = flat * fixed
            if len(units):
                some = flat.index_select(1, units)
                found.append(some)
                line = torch.addcmul(offset[:, at], slope[:, at], some)
                if plane := rows.planes.get(j):
                    where = (1 - taken[:, at]) * k.open[:, at]
                    line = plane.bent(line, x, where, rows.plane)
                outputs.append(line)
                value.index_copy_(1, units, line)
            return value

        self.network.run(x.view(-1, *self.network.input_shape), answer, upto=rows.start)
        if not found:
            return rows.alpha[:, :0].to(x), rows.alpha[:, :0].to(x)
        return torch.cat(found, 1), torch.cat(outputs, 1)

    def value(self, rows: Rows, dtype: torch.dtype = torch.float64) -> Tensor:
        """The lower bounds (m,) of the rows, by one pass in `dtype`: valid for any alpha in [0, 1] and any beta >= 0."""
        back = self.backward(rows, self.relaxation(rows, dtype), dtype)
        return back.constant + self.region.minimum(back.inputs, rows.sample)[0]


def _with_room(low: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds with a little room for the rounding that made them."""
    slack = 1e-9 * (1 + torch.maximum(low.abs(), up.abs()))
    return low - slack, up + slack
