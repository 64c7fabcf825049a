"""Norm balls inside the value range: the best point of one for a linear function, and a point of one near another point.

Source: Linf, L2: Madry et al. 2018, arXiv 1706.06083; L1 inside a box: Croce, Hein 2021, arXiv 2103.01208; L0: Croce, Hein 2019,
arXiv 1909.05040. Linear maximisation in place of projected steps: Chen, Zhou, Yi, Gu 2020, arXiv 1811.10828 (Frank-Wolfe).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance

# Radii are this much smaller than epsilon, so that float32 rounding leaves no example outside.
_INSIDE = 1 - 1e-5
_FILLING_ROUNDS = 10  # of `_l2_move`: each saturates at least one more element, or ends


@dataclass(frozen=True, slots=True)
class Ball:
    """The inputs within `epsilon` of a sample under `norm`, inside the value range `low` to `high`."""

    norm: Norm
    epsilon: float
    low: float = 0.0
    high: float = 1.0

    @property
    def radius(self) -> float:
        """The radius that is searched; the number of elements that may change under L0."""
        return float(int(self.epsilon + 1e-6)) if self.norm is Norm.L0 else self.epsilon * _INSIDE

    def contains(self, inputs: Tensor, clean: Tensor) -> Tensor:
        """Return True for each of `inputs` (n, ...) that lies in the ball around its clean sample, without any tolerance; (n,) bool."""
        ranged = ((inputs >= self.low) & (inputs <= self.high) | (inputs == clean)).flatten(1).all(1)
        return ranged & (distance(self.norm, inputs, clean) <= self.epsilon)

    def maximise(self, gradient: Tensor, clean: Tensor) -> Tensor:
        """Return the point of each ball at which the linear function with this gradient is largest; (n, ...).

        Exact for every norm, so that a linear model is broken in one step wherever it can be broken.
        """
        slope, centre = gradient.flatten(1), clean.flatten(1)
        room = torch.where(slope > 0, self.high - centre, centre - self.low).clamp(min=0)
        size, sign = slope.abs(), slope.sign()
        if self.norm is Norm.LINF:
            move = room.clamp(max=self.radius)
        elif self.norm is Norm.L2:
            move = _l2_move(size, room, self.radius)
        elif self.norm is Norm.L1:
            order = size.argsort(1, descending=True)
            sorted_room = room.gather(1, order)
            room_left = (self.radius - (sorted_room.cumsum(1) - sorted_room)).clamp(min=0)
            move = torch.zeros_like(room).scatter(1, order, torch.minimum(sorted_room, room_left))
        else:
            move = torch.where(largest_positive(size * room, int(self.radius)), room, torch.zeros_like(room))
        return (centre + sign * move).clamp(self.low, self.high).view_as(clean)

    def project(self, inputs: Tensor, clean: Tensor) -> Tensor:
        """Return a point of each ball near each of `inputs` (n, ...); the nearest one but where the range cuts an L1 or L2 ball."""
        centre = clean.flatten(1)
        change = inputs.flatten(1).clamp(self.low, self.high) - centre
        if self.norm is Norm.LINF:
            change = change.clamp(-self.radius, self.radius)
        elif self.norm is Norm.L2:
            length = torch.linalg.vector_norm(change, dim=1, keepdim=True)
            change = change * (self.radius / length.clamp(min=self.radius))
        elif self.norm is Norm.L1:
            change = _l1_projection(change, self.radius)
        else:
            change = torch.where(largest_positive(change.abs(), int(self.radius)), change, torch.zeros_like(change))
        return (centre + change).clamp(self.low, self.high).view_as(clean)


def largest_positive(values: Tensor, k: int) -> Tensor:
    """Mask of the k largest positive values of each row; bool like `values` (n, D)."""
    chosen = torch.zeros_like(values, dtype=torch.bool)
    if k > 0:
        top = values.topk(min(k, values.shape[1]), dim=1)
        chosen.scatter_(1, top.indices, top.values > 0)
    return chosen


def _l2_move(slope: Tensor, room: Tensor, radius: float) -> Tensor:
    """Return the m with 0 <= m <= room and |m| <= radius that maximises slope @ m: min(t slope, room) with the largest t."""
    saturated = slope <= 0
    move = torch.zeros_like(room)
    for _ in range(_FILLING_ROUNDS):
        used = torch.where(saturated, move, 0).square().sum(1, keepdim=True)
        free = torch.where(saturated, 0, slope).square().sum(1, keepdim=True)
        scale = ((radius**2 - used).clamp(min=0) / free.clamp(min=1e-30)).sqrt()
        move = torch.where(saturated, move, torch.minimum(scale * slope, room))
        beyond = ~saturated & (scale * slope >= room)
        if not beyond.any():
            break
        saturated = saturated | beyond
    return move


def _l1_projection(change: Tensor, radius: float) -> Tensor:
    """Euclidean projection of (n, D) on the L1 ball (Duchi et al. 2008, doi:10.1145/1390156.1390191)."""
    size = change.abs()
    ordered = size.sort(1, descending=True).values
    counts = torch.arange(1, size.shape[1] + 1, device=size.device)
    thresholds = (ordered.cumsum(1) - radius) / counts
    last = (ordered > thresholds).sum(1, keepdim=True).clamp(min=1) - 1
    threshold = thresholds.gather(1, last).clamp(min=0)
    return change.sign() * (size - threshold).clamp(min=0)
