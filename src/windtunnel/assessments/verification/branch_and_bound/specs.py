"""Linear functions of a node that are to be bounded, with their splits and multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.planes import Plane


@dataclass(frozen=True, slots=True)
class LinearSpecs:
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
    def joined(cls, parts: Sequence[LinearSpecs]) -> LinearSpecs:
        """LinearSpecs of one node, one after the other; each with its planes, where all parts have some."""
        spec, sample, signs, alpha, beta = (
            torch.cat(of) for of in zip(*((r.spec, r.sample, r.signs, r.alpha, r.beta) for r in parts), strict=True)
        )
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

    def with_multipliers(self, alpha: Tensor, beta: Tensor) -> LinearSpecs:
        """Return the same rows with other multipliers."""
        return replace(self, alpha=alpha, beta=beta)
