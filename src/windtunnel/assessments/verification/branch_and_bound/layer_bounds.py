"""Bounds of the inputs of all activations of a network, over the regions of n samples."""

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import (
    Convex,
    Jump,
    Kink,
    Lines,
    Observed,
    Smooth,
    smooth_lines,
)
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.regions import BallRegions


class LayerBounds:
    """A network over the regions of n samples, with what is known of the inputs of its activations.

    low, up: for each layer that is bounded so far, float64 (n, size). The units that can be split, those that are unstable
    in at least one sample, are its C columns, in the order of layers. units: of each layer, int64 indices. slices: of each
    layer, its columns. rows: linear functions that are carried together. memory: bytes that their planes, and that their subdomains,
    may take.
    """

    def __init__(self, network: Network, region: BallRegions, rows: int, memory: int) -> None:
        self.network, self.region, self.rows, self.memory = network, region, rows, memory
        self._errors = network.jump_errors(torch.maximum(region.low.abs(), region.high.abs()).amax(0))
        self.low: list[Tensor] = []
        self.up: list[Tensor] = []
        self.units: list[Tensor] = []
        self.slices: list[slice] = []
        self._at_columns: tuple[Tensor, Tensor, Tensor]
        self._fixed: dict[tuple[int, torch.dtype], Tensor] = {}
        self._lines: dict[int, Lines] = {}
        self._refresh()

    def add(self, low: Tensor, up: Tensor) -> None:
        """Bounds of the next layer, in float64 and as they were computed."""
        low, up = self._with_room(len(self.low), low, up)
        self.low.append(low)
        self.up.append(up)
        self._refresh()

    def tighten(self, j: int, low: Tensor, up: Tensor) -> None:
        """Other bounds of layer j, of which the tighter counts; given as `add` takes them. The columns are others afterwards."""
        low, up = self._with_room(j, low, up)
        self.low[j] = torch.maximum(self.low[j], low)
        self.up[j] = torch.minimum(self.up[j], up)
        self._refresh()

    def _with_room(self, j: int, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds with a little room for the rounding that made them, and before a jump for that of the network itself."""
        slack = 1e-9 * (1 + torch.maximum(low.abs(), up.abs())) + self._errors.get(j, 0.0)
        activation = self.network.layers[j].activation
        least, most = activation.domain if isinstance(activation, Convex) else (-torch.inf, torch.inf)
        return (low - slack).clamp(least, most), (up + slack).clamp(least, most)

    def _refresh(self) -> None:
        self._fixed.clear()
        self._lines.clear()
        self.units, self.slices, end = [], [], 0
        no_neurons = torch.empty(0, dtype=torch.int64, device=self.network.device)
        parts: list[list[Tensor]] = [[], [], [], []]
        for j, (layer, low, up) in enumerate(zip(self.network.layers, self.low, self.up, strict=False)):
            activation, slope, error = layer.activation, torch.zeros_like(low[0]), torch.full_like(low[0], -1.0)
            units = no_neurons
            if isinstance(activation, Jump | Smooth):
                # A stable jump takes 0 or 1, which is no slope, and a smooth one is never linear.
                units = torch.arange(layer.size, device=low.device)
            if isinstance(activation, Kink):
                units = ((low < 0) & (up > 0)).any(0).nonzero().flatten()
                slope = activation.slope.to(low).expand(1, *layer.shape).reshape(-1)
            elif isinstance(activation, Jump):
                error = self._errors.get(j, error)
            self.units.append(units)
            self.slices.append(slice(end, end := end + len(units)))
            for part, of_columns in zip(parts, (low, up, slope[None], error[None]), strict=True):
                part.append(of_columns[:, units])
        empty = torch.empty(len(self.region), 0, dtype=torch.float64, device=self.network.device)
        low, up, least, errors = (torch.cat(p, 1) if p else empty[: 1 if k > 1 else None] for k, p in enumerate(parts))
        self._at_columns = (low, up, least)
        # (1, C): the error bounds of jumps, negative at other columns; None where there are no jumps.
        self._errors_at_columns = errors if self._errors and self.low else None

    @property
    def has_jumps(self) -> bool:
        """Return whether some layer jumps."""
        return bool(self._errors)

    def error(self, column: int) -> float:
        """Return by how much the input of a column may be off where it jumps; 0 for a kink."""
        return 0.0 if self._errors_at_columns is None else max(0.0, float(self._errors_at_columns[0, column]))

    def below(self, node: int) -> int:
        """Return how many columns lie below `node`."""
        return self.slices[node - 1].stop if node else 0

    def columns(self, j: int) -> Tensor:
        """int64 (size,): the columns of the units of layer j, -1 where a unit is none."""
        positions = torch.full((self.network.layers[j].size,), -1, device=self.network.device)
        positions[self.units[j]] = torch.arange(self.slices[j].start, self.slices[j].stop, device=positions.device)
        return positions

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
        if isinstance(activation, Jump):
            return activation(low), activation(up)
        if isinstance(activation, Kink):
            # Convex: least at an end or at the kink, which a negative slope makes the bottom.
            ends = [activation(z.view(shape)).flatten(1) for z in (low, up, low.clamp(min=0).minimum(up))]
            return torch.stack(ends).amin(0), torch.maximum(ends[0], ends[1])
        lines = self.lines(j)
        below, above = (
            (slope[sample] * low + offset[sample], slope[sample] * up + offset[sample])
            for slope, offset in ((lines.low, lines.low_offset), (lines.up, lines.up_offset))
        )
        return torch.minimum(*below), torch.maximum(*above)

    def lines(self, j: int) -> Lines:
        """Return the float64 lines (n, size) of a smooth layer over whole intervals, remembered until bounds change."""
        activation = self.network.layers[j].activation
        assert isinstance(activation, Smooth)
        if j not in self._lines:
            self._lines[j] = smooth_lines(activation, self.low[j], self.up[j], self._errors.get(j, 0.0))
        return self._lines[j]

    def _linear(self, j: int, dtype: torch.dtype) -> Tensor:
        """Return the slopes of layer j for all n samples, remembered until bounds change; anything at columns."""
        if (j, dtype) not in self._fixed:
            activation, low = self.network.layers[j].activation, self.low[j]
            if not isinstance(activation, Kink):
                self._fixed[j, dtype] = low.new_zeros(len(low), 1, dtype=dtype)
            else:
                slope = activation.slope.to(low).expand(1, *self.network.layers[j].shape).reshape(1, -1)
                self._fixed[j, dtype] = torch.where(low >= 0, 1.0, slope).to(dtype)
        return self._fixed[j, dtype]
