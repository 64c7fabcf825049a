"""What is stored for an assessment with an epsilon lies inside it, and rows that were not broken hold the clean input."""

import pytest
import torch

import windtunnel
from windtunnel.assessments.catalogue import algorithms
from windtunnel.core.contracts import AssessmentKind, Norm, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import distance, within
from windtunnel.core.errors import UnsoundError
from windtunnel.records.storage import POINT_KEYS, search_form, stored_form

ATTACKS = [row for row in algorithms() if row.kind is AssessmentKind.EMPIRICAL_ATTACK]
EPSILON = 0.3


def found_by_a_search(distances, verdicts):
    """A search that went `distances` far under Linf from clean inputs of zero, and counts what `verdicts` say."""
    n = len(distances)
    perturbed = torch.tensor(distances).view(n, 1, 1, 1).expand(n, 1, 2, 2).clone()
    return {
        "clean_inputs": torch.zeros(n, 1, 2, 2),
        "targets": torch.zeros(n, dtype=torch.int64),
        "clean_predictions": torch.tensor([0] * (n - 1) + [1]),
        "verdicts": torch.tensor(verdicts),
        "perturbed_inputs": perturbed,
        "perturbed_predictions": torch.tensor([1, 1, 0, 1]),
        "perturbation_distance": torch.tensor(distances),
        "clean_logits": torch.tensor([[1.0, 0.0]]).expand(n, 2),
        "perturbed_logits": torch.arange(2.0 * n).view(n, 2),
    }


WON, LOST = int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED)


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: f"{row.library}-{row.name}")
def test_of_every_attack_only_examples_inside_the_epsilon_are_stored(row):
    data = found_by_a_search([0.2, 0.348, 0.25, 0.0], [WON, LOST, LOST, WON])
    stored = stored_form(data, Semantics(row, PerturbationBudget(Norm.LINF, EPSILON)))
    inputs, clean = stored["perturbed_inputs"], stored["clean_inputs"]
    assert within(distance(Norm.LINF, inputs, clean), EPSILON).all()
    assert torch.equal(inputs[1:], clean[1:])
    assert torch.equal(inputs[0], data["perturbed_inputs"][0])
    assert stored["perturbed_predictions"].tolist() == [1, 0, 0, 1]
    assert stored["any_distance_samples"].tolist() == [1, 2]
    assert torch.equal(stored["any_distance_inputs"], data["perturbed_inputs"][1:3])


def test_what_was_stored_is_read_back_as_it_was_found():
    data = found_by_a_search([0.2, 0.348, 0.25, 0.0], [WON, LOST, LOST, WON])
    back = search_form(stored_form(data, Semantics(ATTACKS[0], PerturbationBudget(Norm.LINF, EPSILON))))
    assert set(back) == set(data)
    assert all(torch.equal(back[key], data[key]) for key in data)


def test_images_that_were_not_kept_change_nothing():
    data = found_by_a_search([0.2, 0.348, 0.25, 0.0], [WON, LOST, LOST, WON])
    kept = torch.tensor([0, 2])
    data |= {"kept": kept, **{key: data[key][kept] for key in ("clean_inputs", "perturbed_inputs")}}
    stored = stored_form(data, Semantics(ATTACKS[0], PerturbationBudget(Norm.LINF, EPSILON)))
    assert torch.equal(stored["perturbed_inputs"][1], data["clean_inputs"][1])
    back = search_form(stored)
    assert all(torch.equal(back[key], data[key]) for key in data)


def test_a_sample_broken_by_an_example_outside_the_epsilon_is_refused():
    data = found_by_a_search([0.348, 0.2, 0.25, 0.0], [WON, LOST, LOST, WON])
    with pytest.raises(UnsoundError, match="1 samples count as broken by an example outside of epsilon"):
        stored_form(data, Semantics(ATTACKS[0], PerturbationBudget(Norm.LINF, EPSILON)))


def test_an_attack_without_an_epsilon_stores_what_it_found():
    data = found_by_a_search([0.2, 0.348, 0.25, 0.0], [WON, WON, LOST, WON])
    assert stored_form(data, Semantics(ATTACKS[0], PerturbationBudget(Norm.LINF, None))) is data


def test_the_api_gives_what_is_stored(linear_subject, tmp_path):
    data = linear_subject.dataset
    result = windtunnel.assess(
        linear_subject.classifier.module, data.inputs[:30], data.targets[:30], budget="L2 0.2", sanity=None,
        attacks={"near": {"library": "foolbox", "algorithm": "L2DeepFoolAttack", "budget": {"norm": "L2", "epsilon": 0.2}}},
    )  # fmt: skip
    near = result["near"]
    inputs, clean = near.tensor("perturbed_inputs"), near.tensor("clean_inputs")
    lost = near.tensor("verdicts") != WON
    assert lost.any()
    assert within(distance(Norm.L2, inputs, clean), 0.2).all()
    assert torch.equal(inputs[lost], clean[lost])
    assert len(near.tensor("any_distance_inputs")) == int(lost.sum())
    assert set(POINT_KEYS) <= set(near.data)
