"""Upper bounds of activations as planes over the whole input of the network, where a chord is one over the weighted sum alone.

How they are found is in `relu_planes` and `maxpool_planes`; here is what they are, and how they are carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.adam import Adam

_NARROW = 1e-3  # of the mean side of a box: the least that is counted
BLUR = 0.005  # of a unit's range: offsets so near to each other count as equal in the gradient, which would jump between them


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
    seen: int64 (K, P), where the weights (Q, K, P) are of some of the `inputs` only, of each column its own.
    """

    columns: Tensor
    weights: Tensor
    offset: Tensor
    box: InputBoxes | None = None
    seen: Tensor | None = None
    inputs: int = 0

    def carried(self, a: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Carry coefficients a (m, U) of the columns through the planes.

        (a of those without a plane, (m, d) of the input, (m, U) constants).

        which: (m,), of which of the Q functions each row is.
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
        columns, weights, offset = (
            torch.cat(of) for of in zip(*((p.columns, p.weights, p.offset) for p in parts), strict=True)
        )
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
        if self.seen is not None:
            weights = self._of(self.weights, which).to(values)
            if transposed:
                return (weights * values[:, self.seen]).sum(2)
            products = values.new_zeros(len(values), self.inputs)
            return products.index_add_(1, self.seen.flatten(), (weights * values[:, :, None]).flatten(1))

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


class Fitted:
    """The planes of one layer while they are improved."""

    def __init__(self, start: tuple[Tensor, ...], seen: Tensor, rate: float, decay: float) -> None:
        """start: the weights (Q, K, P), and what else is improved. seen: bool, (Q, K, P) or (K, P), of which inputs the unit depends.

        What a unit does not see has no say in its plane: any weight there were valid, but of units that are carried together
        (`grouped_crown.py`) it would count for another one, which sees it.
        """
        self._now = start
        self._best = tuple(t.clone() for t in start)
        self._adam = [Adam.of(t, rate, decay) for t in start]
        self._unseen = None if bool(seen.all()) else ~seen

    def _masked(self, by_weights: Tensor) -> Tensor:
        """Return the derivative by the weights, 0 where nothing is seen."""
        return by_weights if self._unseen is None else by_weights.masked_fill_(self._unseen, 0)

    def keep(self, better: Tensor) -> None:
        """Record the current planes as the best so far of the functions `better`."""
        for best, now in zip(self._best, self._now, strict=True):
            best[better] = now[better]


def widened_box(middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Widen the narrowest sides of an input box, so that weights measured in units of it stay of one size."""
    return middle, radius.maximum(_NARROW * radius.mean(1, keepdim=True))
