"""The search: exact where a closed form exists, never below it, and every find stands on its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.assessments.latent.linear import closed_form, linear_case
from windtunnel.assessments.latent.noise import shrink
from windtunnel.assessments.latent.search import (
    LINF,
    SCALED_L2,
    NearestChanges,
    Problem,
    SearchSettings,
    bounded_search,
    minimum_search,
)
from windtunnel.core.errors import UnsoundError

PLAN = SearchSettings(rho=2.5, restarts=12, steps=50, step_size=0.05)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_problem(classes, n, dim, seed, geometry=SCALED_L2):
    generator = seeded(seed)
    weight, bias = torch.randn(classes, dim, generator=generator), 0.2 * torch.randn(classes, generator=generator)
    centres = torch.randn(n, dim, generator=generator)
    scores = centres @ weight.T + bias
    labels = scores.argmax(1)
    gaps = scores.gather(1, labels[:, None]) - scores
    normals = weight[labels][:, None] - weight[None]
    lengths = normals.norm(dim=2) * dim**0.5 if geometry is SCALED_L2 else normals.abs().sum(2)
    exact = (gaps / lengths.clamp_min(1e-12)).scatter(1, labels[:, None], torch.inf).amin(1)
    return Problem(lambda points, rows: points @ weight.T + bias, centres, labels, geometry), exact


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(2, 20), st.integers(0, 1000))
def test_the_minimum_search_is_never_below_the_closed_form_and_finds_it(classes, dim, seed):
    problem, exact = linear_problem(classes, 8, dim, seed)
    found = minimum_search(problem, PLAN, seeded()).distances
    assert (found >= exact - 1e-5).all()
    within_reach = exact < 2.4
    assert torch.allclose(found[within_reach], exact[within_reach], atol=1e-3)


def test_the_same_search_is_exact_under_linf():
    problem, exact = linear_problem(4, 30, 10, 3, LINF)
    assert torch.allclose(minimum_search(problem, PLAN, seeded()).distances, exact, atol=2e-3)


def test_the_bounded_search_finds_what_lies_inside_and_nothing_outside():
    problem, exact = linear_problem(3, 200, 8, 5)
    clear = (exact - 0.3).abs() > 1e-2
    found = bounded_search(problem, SearchSettings(0.3, 12, 50, 0.05), seeded())
    assert torch.equal(found.distances.isfinite()[clear], (exact <= 0.3)[clear])
    assert (found.distances[found.distances.isfinite()] <= 0.3 + 1e-6).all()


def test_a_find_changes_the_class_alone_in_its_batch():
    problem, _ = linear_problem(5, 50, 12, 7)
    found = minimum_search(problem, PLAN, seeded())
    assert found.distances.isfinite().all()
    for i in range(50):
        row = torch.tensor([i])
        assert problem.scores(problem.centres[row] + found.changes[row], row).argmax() != problem.classes[i]
    assert torch.allclose(SCALED_L2.norm(found.changes), found.distances)


def test_out_of_reach_is_said_and_a_centre_of_another_class_is_at_distance_zero():
    problem, exact = linear_problem(3, 60, 6, 9)
    near = SearchSettings(float(exact.sort().values[29:31].mean()), 4, 50, 0.05)
    found = minimum_search(problem, near, seeded())
    assert torch.equal(found.distances.isinf(), exact > near.rho)
    assert (found.changes[found.distances.isinf()] == 0).all()
    wrong = Problem(problem.scores, problem.centres, (problem.classes + 1) % 3, SCALED_L2)
    assert (minimum_search(wrong, PLAN, seeded()).distances == 0).all()


def test_points_stay_in_their_span():
    problem, _ = linear_problem(3, 20, 6, 2)
    centres = problem.centres.sigmoid()
    seen = []

    def scores(points, rows):
        seen.append(points.detach())
        return problem.scores(points, rows)

    labels = problem.scores(centres, torch.arange(20)).argmax(1)
    minimum_search(Problem(scores, centres, labels, SCALED_L2, (0.0, 1.0)), PLAN, seeded())
    points = torch.cat(seen)
    assert points.min() >= -1e-6
    assert points.max() <= 1 + 1e-6


def test_nan_scores_are_refused():
    problem, _ = linear_problem(3, 4, 6, 2)
    broken = Problem(
        lambda points, rows: problem.scores(points, rows) * torch.nan, problem.centres, problem.classes, SCALED_L2
    )
    with pytest.raises(UnsoundError, match="NaN"):
        minimum_search(broken, PLAN, seeded())


def test_one_seed_gives_equal_results_and_another_does_not_change_the_minimum():
    problem, _ = linear_problem(4, 30, 10, 1)
    one, again, other = (minimum_search(problem, PLAN, seeded(s)) for s in (0, 0, 1))
    assert torch.equal(one.changes, again.changes)
    assert torch.allclose(one.distances, other.distances, atol=1e-3)


def test_the_linear_decoders_closed_form_is_that_of_their_margin():
    subject, generators = linear_case()
    codes = generators.encode(subject.dataset.inputs, subject.dataset.targets)
    assert torch.allclose(generators.decode(codes, subject.dataset.targets), subject.dataset.inputs, atol=1e-4)
    exact = closed_form(subject, generators, codes, subject.dataset.targets, 0.5)
    centres = generators.decode(codes * shrink(0.5), subject.dataset.targets)
    wrong = subject.classifier.predict(centres) != subject.dataset.targets
    assert torch.equal(exact == 0, wrong)


def test_of_several_finds_the_nearest_is_kept_and_nothing_farther_replaces_it():
    found = NearestChanges(torch.zeros(3, 2), torch.full((3,), torch.inf))
    rows, changes = torch.tensor([2, 0, 0, 0]), torch.tensor([[5.0, 5.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0]])
    found.add(rows, changes, SCALED_L2.norm(changes))
    assert found.changes.tolist() == [[1, 1], [0, 0], [5, 5]]
    assert found.distances.tolist() == [1, torch.inf, 5]
    found.add(torch.tensor([0, 2]), torch.tensor([[4.0, 4.0], [4.0, 4.0]]), torch.tensor([4.0, 4.0]))
    assert found.changes.tolist() == [[1, 1], [0, 0], [4, 4]]
