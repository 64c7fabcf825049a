"""Linear bounds carried from a unit back to the input, and the bounding network evaluated forwards again.

Sources: CROWN (Zhang et al. 2018, arXiv 1811.00866), beta-CROWN (Wang et al. 2021, arXiv 2103.06624).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.verification.branch_and_bound.activations import Kink, Smooth
from windtunnel.verification.branch_and_bound.network import Network
from windtunnel.verification.branch_and_bound.regions import Region
from windtunnel.verification.branch_and_bound.relaxations import Lines, kink_lines, smooth_lines


@dataclass(frozen=True, slots=True)
class Columns:
    """The units that can be split: unstable in at least one sample. Each is one of C columns, in the order of layers.

    units: of each layer, int64 indices. slices: of each layer, its columns.
    """

    units: list[Tensor]
    slices: list[slice]

    @classmethod
    def of(cls, network: Network, low: list[Tensor], up: list[Tensor]) -> Columns:
        """The columns of the layers that are bounded so far: low, up (n, size) each."""
        units = [
            ((a < 0) & (b > 0)).any(0).nonzero().flatten()
            if layer.splits
            else torch.empty(0, dtype=torch.int64, device=network.device)
            for layer, a, b in zip(network.layers, low, up, strict=False)
        ]
        ends = [0]
        for some in units:
            ends.append(ends[-1] + len(some))
        return cls(units, [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)])

    def below(self, start: int) -> int:
        """How many columns lie below node `start`."""
        return self.slices[start - 1].stop if start else 0


@dataclass(frozen=True, slots=True)
class Rows:
    """m linear functions of one node to be bounded, each in one subdomain of one region.

    start: the node (the input of an activation, or the output). spec: (m, size of the node). sample: int64 (m,), its region.
    signs: int8 (m, C), +1 where a unit is taken as active, -1 as inactive, 0 where it is not split. alpha: (m, C), in
    [0, 1], where the lower slope of an open unit lies between its least one and 1. beta: (m, C), the multiplier >= 0 of
    each split. C: the columns below the node.
    """

    start: int
    spec: Tensor
    sample: Tensor
    signs: Tensor
    alpha: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return len(self.spec)

    def at(self, index: Tensor) -> Rows:
        """The rows at `index`, int64 or bool."""
        chosen = (t[index] for t in (self.spec, self.sample, self.signs, self.alpha, self.beta))
        return Rows(self.start, *chosen)

    def with_multipliers(self, alpha: Tensor, beta: Tensor) -> Rows:
        """The same rows with other multipliers."""
        return replace(self, alpha=alpha, beta=beta)


@dataclass(slots=True)
class Back:
    """What a backward pass found.

    constant (m,) and inputs (m, d): the lower bound is constant + <inputs, x>. lines: of each layer the (slope, offset) that
    was chosen for each unit. coefficients: of each layer's output (m, size), where they are kept.
    """

    constant: Tensor
    inputs: Tensor
    lines: list[tuple[Tensor, Tensor]]
    coefficients: list[Tensor]

    def at(self, index: Tensor) -> Back:
        """That of the rows at `index`."""
        lines = [(slope[index], offset[index]) for slope, offset in self.lines]
        return Back(self.constant[index], self.inputs[index], lines, [a[index] for a in self.coefficients])


class Bounded:
    """A network over the regions of n samples, with what is known of the inputs of its activations.

    low, up: for each layer that is bounded so far, float64 (n, size).
    """

    def __init__(self, network: Network, region: Region) -> None:
        self.network, self.region = network, region
        self.low: list[Tensor] = []
        self.up: list[Tensor] = []
        self.columns = Columns([], [])
        self._smooth: dict[tuple[int, torch.dtype], Lines] = {}

    def add(self, low: Tensor, up: Tensor) -> None:
        """Bounds of the next layer, with a little room for the rounding that made them."""
        slack = 1e-9 * (1 + torch.maximum(low.abs(), up.abs()))
        self.low.append(low - slack)
        self.up.append(up + slack)
        self.refresh()

    def refresh(self) -> None:
        """To be called when bounds have changed."""
        self.columns = Columns.of(self.network, self.low, self.up)
        self._smooth.clear()

    def start(self, node: int, spec: Tensor, sample: Tensor) -> Rows:
        """Undivided rows with CROWN's slopes: 1 where the upper bound is the larger."""
        parts = [torch.zeros(len(spec), 0, device=spec.device)]
        for j in range(node):
            units = self.columns.units[j]
            parts.append((self.up[j][:, units] > -self.low[j][:, units])[sample].float())
        alpha = torch.cat(parts, 1)
        return Rows(node, spec, sample, torch.zeros_like(alpha, dtype=torch.int8), alpha, torch.zeros_like(alpha))

    def lines(self, rows: Rows, dtype: torch.dtype) -> list[Lines]:
        """The linear bounds of every layer below the rows' node, in each row's subdomain; the lower slopes still open."""
        return [self._lines(j, rows, dtype) for j in range(rows.start)]

    def _lines(self, j: int, rows: Rows, dtype: torch.dtype) -> Lines:
        layer = self.network.layers[j]
        one = len(self.region) == 1
        if isinstance(layer.activation, Smooth):
            if (j, dtype) not in self._smooth:
                made = smooth_lines(layer.activation, self.low[j], self.up[j])
                self._smooth[j, dtype] = Lines(
                    made.low.to(dtype), (made.low_offset if made.low_offset is not None else made.low * 0).to(dtype),
                    made.up.to(dtype), made.up_offset.to(dtype), made.open,
                )  # fmt: skip
            of = self._smooth[j, dtype]
            assert of.low_offset is not None
            if one:
                return of
            return Lines(*(t[rows.sample] for t in (of.low, of.low_offset, of.up, of.up_offset, of.open)))
        assert isinstance(layer.activation, Kink)
        low, up = (t if one else t[rows.sample] for t in (self.low[j], self.up[j]))
        signs = rows.signs[:, self.columns.slices[j]]
        if bool(signs.any()):
            units = self.columns.units[j]
            low, up = (t.expand(len(rows), -1).clone() for t in (low, up))
            low[:, units] = torch.where(signs > 0, low[:, units].clamp(min=0), low[:, units])
            up[:, units] = torch.where(signs < 0, up[:, units].clamp(max=0), up[:, units])
        return kink_lines(layer.activation, low.to(dtype), up.to(dtype), layer.shape)

    def opened(self, lines: list[Lines]) -> list[tuple[Tensor, Tensor]]:
        """Of each layer at its columns: (open, 1 - least slope)."""
        found = []
        for j, line in enumerate(lines):
            units = self.columns.units[j]
            rise = torch.ones(1, len(units), dtype=line.low.dtype, device=line.low.device) - line.least_at(units)
            found.append((line.open[:, units], rise))
        return found

    def backward(self, rows: Rows, lines: list[Lines], *, keep: bool = False) -> Back:
        """Carry the rows to the input with their slopes and multipliers, in the dtype of the lines."""
        dtype, m, start = (lines[0].low.dtype if lines else rows.spec.dtype), len(rows), rows.start
        tape = self.network.tape(m, dtype)
        coefficients: list[Tensor | None] = [None] * (start + 1)
        constant = torch.zeros(m, dtype=dtype, device=self.network.device)

        def push(node: int, a: Tensor) -> None:
            nonlocal constant
            constant = constant + a @ tape.node(node)[0].detach().flatten()
            for i, found in enumerate(tape.gradients(node, a)):
                if found is not None:
                    flat, known = found.flatten(1), coefficients[i]
                    coefficients[i] = flat if known is None else known + flat

        push(start, rows.spec.to(dtype))
        taken: list[tuple[Tensor, Tensor]] = []
        kept: list[Tensor] = []
        for j in reversed(range(start)):
            line, units, at = lines[j], self.columns.units[j], self.columns.slices[j]
            a = coefficients[j + 1]
            coefficients[j + 1] = None
            if a is None:
                a = torch.zeros(m, self.network.layers[j].size, dtype=dtype, device=self.network.device)
            if keep:
                kept.append(a)
            positive = a >= 0
            slope = torch.where(positive, line.low, line.up)
            if len(units):
                least = line.least_at(units)
                chosen = least + (1 - least) * rows.alpha[:, at].to(dtype)
                free = positive[:, units] & line.open[:, units]
                slope[:, units] = torch.where(free, chosen, slope[:, units])
            if line.low_offset is None:
                offset = torch.where(positive, 0.0, line.up_offset)
            else:
                offset = torch.where(positive, line.low_offset, line.up_offset)
            constant = constant + (a * offset).sum(1)
            a = a * slope
            if len(units):
                a[:, units] -= rows.beta[:, at].to(dtype) * rows.signs[:, at]
            taken.append((slope, offset))
            push(j, a)
        inputs = coefficients[0]
        if inputs is None:
            inputs = torch.zeros(m, self.network.inputs, dtype=dtype, device=self.network.device)
        return Back(constant, inputs, taken[::-1], kept[::-1])

    def forward(self, x: Tensor, lines: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The inputs (m, size) of the activations at x (m, d), each activation replaced by its chosen line."""
        found: list[Tensor] = []

        def answer(j: int, z: Tensor) -> Tensor:
            found.append(z.flatten(1))
            slope, offset = lines[j]
            return torch.addcmul(offset, slope, found[-1]).view(z.shape)

        self.network.run(x.view(-1, *self.network.input_shape), answer, upto=len(lines))
        return found

    def value(self, rows: Rows, dtype: torch.dtype = torch.float64) -> Tensor:
        """The lower bounds (m,) of the rows, by one pass in `dtype`: valid for any alpha in [0, 1] and any beta >= 0."""
        back = self.backward(rows, self.lines(rows, dtype))
        return back.constant + self.region.minimum(back.inputs, rows.sample)[0]
