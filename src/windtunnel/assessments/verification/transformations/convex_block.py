"""Joint bounds of the first layers of a network, up to the first nonlinear ones, as functions of the input's symbols.

Behind one affine layer ReLU and max pooling are convex functions of the symbols. A weighted sum of them is the difference of two convex
functions: one is bounded by a plane below it, and what is left attains its extremes at the corners of the box. So the errors of
different neurons, which peak at different corners, do not add up. Multi-neuron bounds of this kind: Tjandraatmadja et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.verification.transformations.affine_forms import AffineForm

_MOST_IMAGES = 800  # of a box: corners, times one more than the symbols that are relaxed at each


def _corner_symbols(symbols: int) -> int:
    """Return how many of the symbols can be at an end together."""
    return max(a for a in range(symbols + 1) if a == 0 or (1 << a) * (1 + symbols - a) <= _MOST_IMAGES)


def images_of(symbols: int) -> int:
    """Return how many images stand for a box of so many symbols."""
    count = _corner_symbols(symbols)
    return (1 << count) * (1 + symbols - count)


@dataclass(frozen=True, slots=True)
class Corners:
    """Corners of B boxes in some of the P symbols; the others stay free at each corner.

    fixed: int64 (a,), the symbols that are at an end. free: int64 (P - a,). signs: float64 (Q, a), the ends, Q = 2^a.
    """

    fixed: Tensor
    free: Tensor
    signs: Tensor

    @classmethod
    def of(cls, influence: Tensor) -> Corners:
        """Choose the symbols of largest `influence` (P,), as many as the work allows."""
        count = min(_corner_symbols(len(influence)), int((influence > 0).sum()))
        order = influence.argsort(descending=True)
        ends = (
            torch.cartesian_prod(*[influence.new_tensor([-1.0, 1.0])] * count).view(-1, count)
            if count
            else influence.new_zeros(1, 0)
        )
        return cls(order[:count], order[count:], ends)

    def forms(self, form: AffineForm) -> AffineForm:
        """Return the values at each corner, as forms (B Q, ...) in the free symbols."""
        shape = form.centre.shape[1:]
        centre = form.centre[:, None] + torch.einsum("qa,ba...->bq...", self.signs, form.slopes[:, self.fixed])
        slopes = form.slopes[:, None, self.free].expand(-1, len(self.signs), -1, *[-1] * len(shape))
        radius = form.radius[:, None].expand(-1, len(self.signs), *[-1] * len(shape))
        return replace(form, centre=centre.flatten(0, 1), slopes=slopes.flatten(0, 1), radius=radius.flatten(0, 1))


@dataclass(frozen=True, slots=True)
class ConvexBounds:
    """Bounds of convex functions f of P symbols in B boxes.

    lower: (B, F...), a plane below each function. top: (B, Q, F...), what it is at most at a corner, and top_slopes (B, Q, P - a, F...).
    """

    corners: Corners
    lower: AffineForm
    top: Tensor
    top_slopes: Tensor

    def at(self, rows: Tensor) -> ConvexBounds:
        """Return the boxes `rows` alone."""
        plane = self.lower
        lower = replace(plane, centre=plane.centre[rows], slopes=plane.slopes[rows], radius=plane.radius[rows])
        return ConvexBounds(self.corners, lower, self.top[rows], self.top_slopes[rows])

    def minimum(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Bound <coefficients, f> from below, coefficients (B, F...).

        Returns:
            Lower bounds (B,), and slopes (B, P) that grow with what a symbol changes, with the sign that leads to the least corner.

        """
        at, q = self.corners, len(self.corners.signs)
        up, down = coefficients.flatten(1).clamp(min=0), coefficients.flatten(1).clamp(max=0)
        plane = torch.einsum("bf,bpf->bp", up, self.lower.slopes.flatten(2))
        free = torch.einsum("bf,bqpf->bqp", down, self.top_slopes.flatten(3)) + plane[:, None, at.free]
        corners = torch.einsum("bf,bqf->bq", down, self.top.flatten(2)) + plane[:, at.fixed] @ at.signs.T
        corners = corners + (up * self.lower.centre.flatten(1)).sum(1, keepdim=True)
        least, worst = (corners - free.abs().sum(2)).min(1)
        slopes = torch.empty_like(plane)
        slopes[:, at.fixed] = -at.signs[worst] * (corners @ at.signs / q).abs()
        slopes[:, at.free] = free[torch.arange(len(worst)), worst]
        return least, slopes

    def mapped(
        self,
        crop: Callable[[Tensor, bool], Tensor],
        apply: Callable[[Tensor], Tensor],
        absolute: Callable[[Tensor], Tensor],
        offset: Tensor | float,
    ) -> AffineForm:
        """Return forms of W f + offset in all P symbols.

        Args:
            crop: brings values, or differences where its second argument is True, into the window of the layer.
            apply: W of values (m, F...).
            absolute: the absolute values of W.
            offset: of the layer.

        """
        at, (b, q), p = self.corners, self.top.shape[:2], self.lower.slopes.shape[1]

        def signed(values: Tensor, is_difference: bool, *sizes: int) -> tuple[Tensor, Tensor]:
            inner = crop(values, is_difference)
            straight, size = apply(inner), absolute(inner)
            return tuple(part.view(*sizes, *part.shape[1:]) for part in ((size + straight) / 2, (size - straight) / 2))  # type: ignore[return-value]

        top, top_slopes = (
            signed(self.top.flatten(0, 1), False, b, q),
            signed(self.top_slopes.flatten(0, 2), True, b, q, p - len(at.fixed)),
        )
        plane, plane_slopes = signed(self.lower.centre, False, b), signed(self.lower.slopes.flatten(0, 1), True, b, p)
        slopes = torch.empty_like(plane_slopes[0])
        slopes[:, at.fixed] = torch.einsum("qa,bq...->ba...", at.signs / q, top[0] - top[1])
        slopes[:, at.free] = (top_slopes[0] - top_slopes[1]).mean(1)
        ends = []
        for positive, negative in ((0, 1), (1, 0)):  # what W f is at most, and what -W f is at most, less the slopes
            sign = 1 - 2 * positive
            rest = plane_slopes[negative] + sign * slopes
            most = (
                top[positive] - plane[negative][:, None] - torch.einsum("qa,ba...->bq...", at.signs, rest[:, at.fixed])
            )
            most = most + (top_slopes[positive] - rest[:, None, at.free]).abs().sum(2)
            ends.append(sign * most.amax(1))
        return replace(
            self.lower, centre=(ends[0] + ends[1]) / 2 + offset, slopes=slopes, radius=(ends[0] - ends[1]) / 2
        )
