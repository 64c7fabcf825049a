"""The best point of a ball for a linear function, and points inside: against exact facts."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from windtunnel.core.contracts import Norm
from windtunnel.core.distances import DISTANCE, distance
from windtunnel.evaluation.witness.balls import Ball

EPSILON = {Norm.LINF: 0.2, Norm.L2: 0.7, Norm.L1: 1.3, Norm.L0: 4.0}


def points(n: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", list(DISTANCE))
def test_no_point_lies_outside_the_ball_or_the_range(norm: Norm) -> None:
    clean, slope = points(50, 3, 8, 8), points(50, 3, 8, 8, seed=1) - 0.5
    ball = Ball(norm, EPSILON[norm])
    for moved in (ball.maximise(slope, clean), ball.project(points(50, 3, 8, 8, seed=2), clean)):
        assert ball.contains(moved, clean).all()
        assert not torch.equal(moved, clean)


@pytest.mark.parametrize("norm", list(DISTANCE))
def test_the_best_point_is_at_least_as_good_as_any_other(norm: Norm) -> None:
    clean, slope = points(1, 6), points(1, 6, seed=1) - 0.5
    ball = Ball(norm, EPSILON[norm])
    best = float((ball.maximise(slope, clean) * slope).sum())
    many = clean + 2 * points(20_000, 6, seed=2) - 1
    inside = ball.project(many, clean.expand(20_000, -1))
    assert float((inside * slope).sum(1).max()) <= best + 1e-5


def test_the_best_point_under_l2_is_the_scaled_gradient_where_the_range_is_far() -> None:
    clean, slope = torch.full((1, 10), 0.5), points(1, 10) - 0.5
    moved = Ball(Norm.L2, 0.1).maximise(slope, clean)
    torch.testing.assert_close(moved - clean, 0.1 * slope / slope.norm(), atol=1e-5, rtol=1e-4)


def test_the_best_point_under_l2_fills_the_ball_where_the_range_cuts_it() -> None:
    clean, slope = points(20, 30), points(20, 30, seed=1) - 0.5
    moved = Ball(Norm.L2, 1.0).maximise(slope, clean)
    assert float(distance(Norm.L2, moved, clean).min()) > 1.0 - 1e-4


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_best_point_under_l0_is_that_of_trying_all(k: int) -> None:
    clean, slope = points(1, 5), points(1, 5, seed=1) - 0.5
    gains = torch.where(slope > 0, 1 - clean, clean)[0] * slope[0].abs()
    best = max(sum(float(gains[i]) for i in chosen) for chosen in itertools.combinations(range(5), k))
    moved = Ball(Norm.L0, float(k)).maximise(slope, clean)
    assert float(((moved - clean) * slope).sum()) == pytest.approx(best, rel=1e-5)


def test_an_l0_budget_below_one_element_moves_nothing() -> None:
    clean = points(3, 5)
    assert torch.equal(Ball(Norm.L0, 0.5).maximise(clean - 0.5, clean), clean)
