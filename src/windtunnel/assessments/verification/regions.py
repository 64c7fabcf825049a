"""The set of points around each sample: a ball of the norm, cut off at the image domain, and linear functions' minima over it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core.contracts import Norm


@dataclass(frozen=True, slots=True)
class BallRegions:
    """n balls. centre, low, high: float64 (n, d), the samples and the box around each ball, inside [0, 1]; radius: (n,)."""

    norm: Norm
    centre: Tensor
    low: Tensor
    high: Tensor
    radius: Tensor

    @classmethod
    def around(cls, inputs: Tensor, norm: Norm, epsilon: float | Tensor, device: torch.device) -> BallRegions:
        """Balls of `epsilon`, one for all or one each (n,), around inputs (n, ...) in [0, 1]."""
        centre = inputs.detach().to(device).flatten(1).double()
        radius = torch.as_tensor(epsilon, dtype=torch.float64, device=device).expand(len(centre))
        low, high = ((centre + side * radius[:, None]).clamp(0, 1) for side in (-1, 1))
        return cls(norm, centre, low, high, radius)

    def part(self, members: Tensor) -> BallRegions:
        """Return the balls of `members`, int64."""
        return BallRegions(self.norm, *(t[members] for t in (self.centre, self.low, self.high, self.radius)))

    def __len__(self) -> int:
        return len(self.centre)

    def minimum(self, a: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(minima (m,), minimisers (m, d)) of <a, x>, a (m, d), over the regions `rows` (m,), in the dtype of a.

        A minimum is a lower bound even where rounding makes the minimiser inexact: it is the value of a dual.
        """
        is_single = len(self) == 1
        low, high = ((t if is_single else t[rows]).to(a) for t in (self.low, self.high))
        if self.norm is Norm.LINF:
            x = torch.addcmul((low + high) / 2, (low - high) / 2, a.sign())
            return (a * x).sum(1), x
        centre, down = (self.centre if is_single else self.centre[rows]).to(a), a >= 0
        room = torch.where(down, centre - low, high - centre)
        size, radius = a.abs(), self.radius[rows].to(a)
        moved, gained = (_l2 if self.norm is Norm.L2 else _l1)(size, room, radius)
        x = centre + torch.where(down, -moved, moved)
        return (a * centre).sum(1) - gained, x

    def points(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return the points x (m, d), moved into the regions `rows` where rounding has left it outside; float64."""
        x = torch.minimum(torch.maximum(x.double(), self.low[rows]), self.high[rows])
        if self.norm is Norm.LINF:
            return x
        order = 2 if self.norm is Norm.L2 else 1
        off = x - self.centre[rows]
        length: Tensor = torch.linalg.vector_norm(off, ord=order, dim=1, keepdim=True)
        return self.centre[rows] + off * (self.radius[rows][:, None] / length.clamp(min=1e-300)).clamp(max=1)


def _l1(size: Tensor, room: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """(how far each coordinate moves, an upper bound of what that gains): the fractional knapsack, largest slopes first."""
    order = size.argsort(1, descending=True)
    slopes, rooms = size.gather(1, order), room.gather(1, order)
    spent_before = rooms.cumsum(1) - rooms
    moves = torch.minimum((radius[:, None] - spent_before).clamp(min=0), rooms)
    # The dual at the slope t where the radius is used up: radius t + the rooms' gains beyond t. Valid for any t >= 0.
    price = torch.where(rooms.cumsum(1) > radius[:, None], slopes, 0.0).amax(1)
    gained = radius * price + (rooms * (slopes - price[:, None]).clamp(min=0)).sum(1)
    return torch.zeros_like(size).scatter(1, order, moves), gained


def _l2(size: Tensor, room: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Minimise as `_l1` does: a coordinate moves by size / t, or to the end of its room, with the t that uses up the radius."""
    ratio = room / size.clamp(min=1e-30)
    order = ratio.argsort(1)
    ratios, rooms, slopes = (v.gather(1, order) for v in (ratio, room, size))
    full = torch.nn.functional.pad((rooms**2).cumsum(1), (1, 0))  # the first k coordinates at the end of their room
    free = torch.nn.functional.pad((slopes**2).flip(1).cumsum(1).flip(1), (0, 1))
    remaining = (radius[:, None] ** 2 - full).clamp(min=0)
    inverse = (remaining / free.clamp(min=1e-30)).sqrt()  # 1 / t for each k
    beyond = torch.nn.functional.pad(ratios, (0, 1), value=torch.inf)
    k = (inverse <= beyond).int().argmax(1, keepdim=True)
    step = inverse.gather(1, k)
    moved = torch.minimum(size * step, room)
    is_inside = full[:, -1:] <= radius[:, None] ** 2  # the whole box lies inside the ball
    t = torch.where(is_inside, 0.0, 1 / step.clamp(min=1e-30))
    moved = torch.where(is_inside, room, moved)
    # The dual: sum of max over m in [0, room] of size m - t m^2 / 2, and t radius^2 / 2. Valid for any t >= 0.
    gained = (size * moved - t * moved**2 / 2).sum(1) + (t * radius[:, None] ** 2).squeeze(1) / 2
    return moved, gained
