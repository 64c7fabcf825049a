"""The falsifier: what it finds is misclassified in both precisions, inside the ball, and it finds what one class hides."""

import pytest
import torch
from balls import budget, entry, first, subject_with
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.falsifier import confirmed, falsify, falsify_targeted
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.distances import distance


class Decoy(nn.Module):
    """The nearest class can never win, and its gradient leads away from where another one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        off = x.flatten(1).mean(1) - 0.45
        return torch.stack([torch.ones_like(off), 0.9 - 0.05 * torch.tanh(20 * off), 15 * off - 1], 1)


def test_aimed_at_each_class_it_finds_what_the_nearest_class_hides():
    subject = subject_with(Decoy(), torch.full((2, 1, 4, 4), 0.45), 3)
    x, y = subject.dataset.inputs, subject.dataset.targets
    plain, _ = falsify(subject.classifier, x, y, 0.2, seed=0)
    targeted, points = falsify_targeted(subject.classifier, x, y, 0.2, seed=0)
    assert not plain.any()
    assert targeted.all()
    assert (subject.classifier.predict(points) == 2).all()


class Basin(nn.Module):
    """The least margin lies behind a ridge, on both sides of a basin that every random start is in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        off = (x.flatten(1).mean(1) - 0.5).abs()
        return torch.stack([torch.where(off < 0.1, 0.3 + off, 0.8 - 4 * off), torch.zeros_like(off)], 1)


@pytest.mark.parametrize("search", [falsify, falsify_targeted])
def test_its_first_steps_lead_out_of_the_basin_that_it_starts_in(search):
    subject = subject_with(Basin(), torch.full((2, 1, 4, 4), 0.5), 2)
    found, _ = search(subject.classifier, subject.dataset.inputs, subject.dataset.targets, 0.22, seed=0)
    assert found.all()


@pytest.mark.parametrize(("norm", "epsilon"), [(Norm.LINF, 0.1), (Norm.L2, 0.8), (Norm.L1, 4.0)])
@pytest.mark.parametrize("search", [falsify, falsify_targeted])
def test_what_it_finds_lies_in_the_ball_and_is_misclassified_in_both_precisions(digits_subject, norm, epsilon, search):
    subject = first(digits_subject, 8)
    x, y = subject.dataset.inputs, subject.dataset.targets
    found, points = search(subject.classifier, x, y, epsilon, 0, norm, steps=30, restarts=2)
    assert found.any()
    assert (distance(norm, points[found], x[found]) <= epsilon * (1 + 1e-5)).all()
    assert points.min() >= 0
    assert points.max() <= 1
    assert confirmed(subject.classifier, points[found], y[found]).all()


def test_the_attack_ends_where_its_first_round_has_broken_every_sample(mlp_subject):
    result = assess("v", entry("cascade", steps=["attack"]), budget(0.5), first(mlp_subject, 4))
    assert (result.data["verdicts"] == Verdict.FALSIFIED).all()


@pytest.mark.slow
def test_what_the_solver_breaks_the_attack_has_broken(mlp_subject):
    """Marabou is complete on this network: a counter-example that the attack misses would show."""
    subject, ball = first(mlp_subject, 16), budget(0.06)
    verdicts = {
        step: assess("v", entry("cascade", steps=[step], timeout=120), ball, subject).data["verdicts"]
        for step in ("attack", "marabou")
    }
    broken = verdicts["marabou"] == Verdict.FALSIFIED
    assert int(broken.sum()) > int((~subject.clean_correct).sum())
    assert (verdicts["attack"][broken] == Verdict.FALSIFIED).all()
