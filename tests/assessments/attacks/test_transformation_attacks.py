"""Attacks on transformations: what is stored is made again from its parameters, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.assessments.attacks.transformations.search import ParameterSearch, gradient, places_of
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.criterion import Criterion
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import transformation_of
from windtunnel.core.transformed import parameter_distances, transform
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.result import tensors_in

LINF = Budget(norm=Norm.LINF, epsilon=0.1)


def _entry(algorithm: str, budget: dict[str, object], **params: object) -> AttackEntry:
    block = {"library": "transformations", "algorithm": algorithm, "budget": budget, "params": params}
    return AttackEntry.model_validate(block)


@pytest.fixture(scope="module")
def few(digits_subject: Subject) -> Subject:
    return digits_subject.subset(digits_subject.clean_correct.nonzero().flatten()[:12])


@pytest.mark.parametrize(("algorithm", "budget"), [
    ("grid", {"rotation": 40}), ("grid", {"translation": 1}), ("gradient", {"rotation": 20, "scale": 0.2, "brightness": 0.2}),
    ("evolution", {"rotation": 40, "scale": 0.2}),
    ("random", {"shear": 0.3, "contrast": 0.4}), ("grid", {"occlusion": 3}), ("random", {"blur": 3}),
    ("gradient", {"rotation": 60, "border": "edge"}), ("grid", {"translation": 2, "border": "reflect"}),
])  # fmt: skip
def test_images_and_distances_are_made_again_from_the_parameters(
    few: Subject, algorithm: str, budget: dict[str, object]
) -> None:
    data = assess("it", _entry(algorithm, budget), LINF, few).data
    transformation = transformation_of(Budget.model_validate(budget).norm)
    assert transformation is not None
    table = tensors_in(data, "transformation_parameters")
    parameters = torch.stack(list(table.values()), 1)
    assert torch.equal(transform(transformation, few.dataset.inputs, parameters.double()), data["perturbed_inputs"])
    assert torch.equal(parameter_distances(transformation, table), data["perturbation_distance"])
    assert float(data["perturbation_distance"].max()) <= 1 + 1e-5
    broken = data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert broken.any()
    again = few.classifier.predict(data["perturbed_inputs"], few.dataset.targets)
    assert torch.equal(again != few.dataset.targets, broken)


@pytest.mark.parametrize(
    ("algorithm", "params"), [("gradient", {"restarts": 2, "steps": 5}), ("evolution", {"queries": 60})]
)
def test_a_patch_changes_its_square_alone(few: Subject, algorithm: str, params: dict[str, object]) -> None:
    data = assess("it", _entry(algorithm, {"patch": 3}, **params), LINF, few).data
    changed = (data["perturbed_inputs"] != few.dataset.inputs).any(1)
    table = tensors_in(data, "transformation_parameters")
    for i, (row, column) in enumerate(zip(table["patch_row"].long(), table["patch_column"].long(), strict=True)):
        changed[i, row : row + 3, column : column + 3] = False
    assert not changed.any()
    assert (data["verdicts"] == Verdict.ATTACK_SUCCEEDED).any()


class _Line(nn.Module):
    """Logits (0, <w, x> - b): the best place and content of a patch are known exactly."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = (x * self.weights).sum((1, 2, 3)) - 1e3
        return torch.stack([torch.zeros_like(margin), margin], 1)


def _line_problem(seed: int) -> tuple[ParameterSearch, torch.Tensor]:
    """Three samples of class 0, and the exact loss of the best patch at each of their places, (3, M)."""
    generator = torch.Generator().manual_seed(seed)
    weights, inputs = (f(3, 2, 20, 17, generator=generator) for f in (torch.randn, torch.rand))
    model, region, criterion = _Line(weights[:1]), transformation_of(Norm("patch=4")), Criterion()
    assert region is not None
    problem = ParameterSearch.over(region, 1.0, inputs, torch.zeros(3, dtype=torch.int64), model, criterion)
    best = torch.where(weights[:1] > 0, weights[:1] * (1 - inputs), -weights[:1] * inputs).sum(1, keepdim=True)
    sums = nn.functional.avg_pool2d(best, 4, 1).flatten(1) * 16
    return problem, model(inputs)[:, 1:] + sums


@pytest.mark.parametrize("seed", range(3))
def test_the_best_patch_of_a_linear_model_is_exact_from_two_places(seed: int) -> None:
    problem, exact = _line_problem(seed)
    gradient(problem, restarts=1, steps=12, places=2)
    assert torch.allclose(problem.best, exact.amax(1), atol=1e-3)
    assert torch.equal(problem.units, problem.places[exact.argmax(1)])


def test_a_painted_patch_moves_towards_what_raises_the_loss() -> None:
    problem, exact = _line_problem(5)
    rows, content = torch.arange(3), (problem.model.weights > 0).float().expand(3, -1, -1, -1)
    start = problem.places[torch.tensor([100, 120, 80])]
    problem.paint(rows, start, content, 12)
    stayed = problem.best.clone()
    assert torch.equal(problem.units, start)
    problem.paint(rows, start, content, 12, moving=True)
    assert (problem.best > stayed + 1).all()
    assert torch.allclose(problem.best, exact.gather(1, _index(problem)[:, None])[:, 0], atol=1e-3)


def _index(problem: ParameterSearch) -> torch.Tensor:
    return (problem.places == problem.units[:, None]).all(2).int().argmax(1)


def test_a_fine_grid_of_angles_finds_nothing_that_the_attack_missed(few: Subject) -> None:
    found = assess("it", _entry("grid", {"rotation": 25}), LINF, few).data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    angles = torch.linspace(-25, 25, 2001, dtype=torch.float64)[:, None]
    region = transformation_of(Norm("rotation=25"))
    assert region is not None
    for i, (image, label) in enumerate(zip(few.dataset.inputs, few.dataset.targets, strict=True)):
        images = transform(region, image.expand(len(angles), -1, -1, -1), angles)
        wrong = few.classifier.predict(images, label.expand(len(angles))) != label
        assert bool(found[i]) == bool(wrong.any())


def test_evolution_beats_random_points_at_equal_queries(digits_subject: Subject) -> None:
    many = digits_subject.subset(digits_subject.clean_correct.nonzero().flatten()[:100])
    budgets: tuple[dict[str, object], ...] = ({"patch": 2}, {"rotation": 12, "scale": 0.1, "shear": 0.1})
    for budget in budgets:
        broken = {}
        for algorithm in ("evolution", "random"):
            data = assess("it", _entry(algorithm, budget, queries=100), LINF, many).data
            assert float(data["forward_passes"].max()) <= 100
            assert float(data["backward_passes"].max()) == 0
            broken[algorithm] = int((data["verdicts"] == Verdict.ATTACK_SUCCEEDED).sum())
        assert broken["evolution"] > broken["random"], (budget, broken)


UNIVERSAL = {"library": "transformations", "algorithm": "universal", "samples": {"n": 60, "selection": "random"}}


def _universal(digits_subject: Subject, **entry: object) -> Artifacts:
    data = digits_subject.dataset
    attacks = {"u": {**UNIVERSAL, **entry}}
    model = digits_subject.classifier.module
    return windtunnel.assess(
        model, data.inputs, data.targets, budget={"patch": 3}, attacks=attacks, verify=None, sanity=None
    )["u"]


def test_a_universal_patch_is_evaluated_on_other_samples_than_those_it_is_fitted_on(digits_subject: Subject) -> None:
    result = _universal(digits_subject, params={"places": 10, "starts": 2, "steps": 20})
    patch, row, column = (
        result.tensor("universal_patch"),
        *(
            int(tensors_in(result.data, "transformation_parameters")[f"patch_{name}"].max())
            for name in ("row", "column")
        ),
    )
    clean, attacked = result.tensor("clean_inputs"), result.tensor("attacked")
    assert len(clean) == 60
    expected = clean.clone()
    expected[attacked, :, row : row + 3, column : column + 3] = patch
    assert torch.equal(result.tensor("perturbed_inputs"), expected)
    fitted_on = result.metadata.kwargs.model_dump()["fitted_on"]
    assert fitted_on["n"] == len(fitted_on["samples"]) == 128
    assert not {*fitted_on["samples"]} & {*result.sample_names}
    assert fitted_on["n_broken"] > 0

    def broken_by(content: torch.Tensor) -> float:
        images = clean[attacked].clone()
        images[:, :, row : row + 3, column : column + 3] = content
        targets = result.tensor("targets")[attacked]
        return float((digits_subject.classifier.predict(images, targets) != targets).double().mean())

    generator = torch.Generator().manual_seed(0)
    random = [broken_by(torch.randint(2, (1, 3, 3), generator=generator).float()) for _ in range(20)]
    assert broken_by(patch) == pytest.approx(float(result.metrics["attack_success_rate"]))
    assert broken_by(patch) > max(random)
    passes = result.tensor("forward_passes")[attacked]
    assert float(passes.sum()) == pytest.approx(
        128 * (10 + 2 * 21 + 1), rel=1e-4
    )  # of the fit, which the samples share


def test_a_universal_patch_is_one_patch_whatever_the_batches_and_another_under_another_number(
    digits_subject: Subject,
) -> None:
    params = {"steps": 10, "starts": 1, "places": 4}
    whole, parts = (_universal(digits_subject, params=params, batch_size=size) for size in (128, 7))
    assert torch.equal(whole.tensor("perturbed_inputs"), parts.tensor("perturbed_inputs"))
    few = _universal(digits_subject, params={**params, "fit_samples": 9})
    assert few.metadata.kwargs.model_dump()["fitted_on"]["n"] == 9
    assert not torch.equal(few.tensor("universal_patch"), whole.tensor("universal_patch"))


def test_the_gradients_of_a_universal_patch_are_taken_of_a_batch_at_once(digits_subject: Subject) -> None:
    """128 samples of 224 pixels at once would not fit into the memory that an entry of batches of 4 may use."""
    sizes = set()

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = digits_subject.classifier.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled() and x.requires_grad:
                sizes.add(len(x))
            return self.net(x)

    data, entry = digits_subject.dataset, {**UNIVERSAL, "params": {"steps": 2, "starts": 1, "places": 4}}
    windtunnel.assess(
        Watched(), data.inputs, data.targets, budget={"patch": 3}, attacks={"u": {**entry, "batch_size": 48}},
        verify=None, sanity=None,
    )  # fmt: skip
    assert max(sizes) == 48


def test_a_universal_patch_is_fitted_to_images_with_fewer_places_than_are_tried(digits_subject: Subject) -> None:
    assert len(places_of(3, digits_subject.dataset.inputs)) == 36
    result = _universal(digits_subject, params={"places": 50, "starts": 1, "steps": 1, "fit_samples": 8})
    assert result.metadata.kwargs.model_dump()["fitted_on"]["n"] == 8


@pytest.mark.parametrize(("entry", "reason"), [
    ({"samples": {}}, "outside of its draw, which has all 200"),
    ({"restarts": 2}, "universal fits one patch"),
    ({"budget": {"rotation": 5}}, "universal fits a patch"),
    ({"params": {"fit_samples": 0}}, "fit_samples"),
    ({"params": {"places": 0}}, "places"),
])  # fmt: skip
def test_a_universal_patch_that_cannot_be_is_refused(
    digits_subject: Subject, entry: dict[str, object], reason: str
) -> None:
    with pytest.raises((UserError, IncompatibleError), match=reason):
        _universal(digits_subject, **entry)


@pytest.mark.parametrize("algorithm", ["gradient", "random"])
def test_a_seed_decides_the_draws(few: Subject, algorithm: str) -> None:
    entry = _entry(
        algorithm, {"rotation": 5}, **({"queries": 5} if algorithm == "random" else {"restarts": 2, "steps": 3})
    )
    first, again, other = (
        assess("it", entry, LINF, replace(few, seed=seed)).data["perturbed_inputs"] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("block", "reason"), [
    ({"library": "transformations", "algorithm": "grid"}, "the budget is a ball of Linf"),
    ({"library": "torchattacks", "algorithm": "PGD", "budget": {"rotation": 5}}, "use library: transformations"),
    ({"library": "transformations", "algorithm": "grid", "budget": {"rotation": 5, "scale": 0.1, "shear": 0.1}}, "one or two"),
    ({"library": "transformations", "algorithm": "grid", "budget": {"patch": 2}}, "no grid"),
    ({"library": "transformations", "algorithm": "gradient", "budget": {"occlusion": 2}}, "no gradient"),
    ({"library": "transformations", "algorithm": "evolution", "budget": {"occlusion": 2}}, "no evolution"),
    ({"library": "transformations", "algorithm": "gradient", "budget": {"hue": 20}}, "3 channels"),
    ({"library": "transformations", "algorithm": "gradient", "budget": {"patch": 9}}, "does not fit"),
])  # fmt: skip
def test_a_region_that_an_attack_cannot_search_is_refused(few: Subject, block: dict[str, object], reason: str) -> None:
    with pytest.raises(IncompatibleError, match=reason):
        preflight("attacks.it", AttackEntry.model_validate(block), LINF, few.classifier, few.dataset)


def test_a_population_larger_than_the_queries_is_refused(few: Subject) -> None:
    entry = _entry("evolution", {"rotation": 5}, population=20, queries=10)
    with pytest.raises(UserError, match="3 at least, and at most queries"):
        preflight("attacks.it", entry, LINF, few.classifier, few.dataset)
