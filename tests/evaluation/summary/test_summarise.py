"""The sandwich from planted evidence: every number here is known beforehand."""

import csv
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from tools.recompute import differences, of_summary
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import (
    SMOOTHED_MODEL,
    Algorithm,
    AssessmentKind,
    Capability,
    Norm,
    PerturbationBudget,
    PerturbationDistribution,
    Randomness,
    Semantics,
    ThreatModel,
    Verdict,
)
from windtunnel.core.dataset import Dataset
from windtunnel.core.sample_states import STATE_CODES
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.summary.headline import headline_metrics, write_series
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.evaluation.validate import metric_names, validate
from windtunnel.records.artifacts import base_data, base_kwargs, write_artifacts
from windtunnel.records.findings import FindingRecord
from windtunnel.records.result import AssessmentResult
from windtunnel.records.sandwich import DrawRecord, Layer

BUDGET = PerturbationBudget(Norm.LINF, 0.1)


def row(kind, minimum_norm=False, categories=()):
    return Algorithm(
        "torchattacks",
        "made",
        kind,
        ThreatModel.WHITE_BOX,
        Norm.LINF,
        frozenset(categories),
        Randomness.DETERMINISTIC,
        frozenset(),
        minimum_norm,
    )


@pytest.fixture
def subject():
    """Four samples of two pixels; the class is the larger pixel; the last sample is misclassified."""
    classifier = Classifier(nn.Flatten(), 2, (1, 1, 2), frozenset({Capability.FORWARD}), "digest", "test")
    inputs = torch.tensor([[0.9, 0.1], [0.52, 0.48], [0.3, 0.7], [0.6, 0.4]]).view(4, 1, 1, 2)
    return subject_of(classifier, Dataset(inputs, torch.tensor([0, 0, 1, 1]), tuple("abcd"), ("left", "right")))


@pytest.fixture
def write(subject, tmp_path):
    def write(
        name, kind, verdicts, perturbed=None, region=BUDGET, keep=None, predictions=None, digest="digest", **facts
    ):
        mine = subject if keep is None else subject.subset(torch.tensor(keep))
        if keep is not None:
            chosen = {"of": 4, "n": len(keep), "selection": "first"}
            mine = replace(mine, dataset=replace(mine.dataset, chosen=chosen))
        mine = replace(mine, classifier=replace(mine.classifier, digest=digest))
        data = base_data(mine, torch.tensor(verdicts))
        if perturbed is not None:
            data["perturbed_inputs"] = perturbed
            answers = mine.classifier.predict(perturbed) if predictions is None else torch.tensor(predictions)
            data["perturbed_predictions"] = answers
        result = AssessmentResult(
            name, Semantics(row(kind, **facts), region), data, {"clean_accuracy": 0.75}, kwargs=base_kwargs(mine)
        )
        return write_artifacts(result, tmp_path / name, mine, started=time.time())

    return write


@pytest.fixture
def clean(write):
    return write(
        "clean", AssessmentKind.STATISTICAL_SAMPLING, [7, 7, 7, 8], region=PerturbationDistribution("identity", 0)
    )


def counts(**states):
    return {state: states.get(state, 0) for state in STATE_CODES}


def moved(subject, index, by):
    perturbed = subject.dataset.inputs.clone()
    perturbed[index] += torch.tensor([-by, by]).view(1, 1, 2)
    return perturbed


def test_the_sandwich_of_a_proof_an_attack_and_an_unknown(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    summary = summarise(subject, BUDGET, clean, [attack, proof])
    assert summary.metrics["clean_accuracy"] == 0.75
    assert summary.metrics["worst_case_accuracy"] == 0.5  # b is broken by pgd, d is wrong without any attack
    assert summary.metrics["certified_accuracy"] == 0.25
    assert summary.metrics["hard_failures"] == 0
    assert summary.data["worst_by"].tolist() == [-1, 0, -1, -1]
    assert summary.data["certified_by"].tolist() == [1, -1, -1, -1]
    assert summary.data["verdicts"].tolist() == [2, 1, 2, 1]


def test_an_example_of_another_norm_counts_where_it_fits(subject, write, clean):
    found = write(
        "l2", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05), PerturbationBudget(Norm.L2, 0.5)
    )
    summary = summarise(subject, BUDGET, clean, [found])
    assert summary.data["worst_by"].tolist() == [-1, 0, -1, -1]
    # Nothing searched the Linf ball, so nobody survived an attack there and there is no worst case.
    assert "worst_case_accuracy" not in summary.metrics
    assert summary.metrics["sandwich"][0]["states"] == counts(misclassified=1, broken=1, not_attacked=2)
    distances = write(
        "far", AssessmentKind.EMPIRICAL_ATTACK, [2, 2, 1, 2], -moved(subject, 2, -0.3), PerturbationBudget(Norm.L2, 0.5)
    )
    assert summarise(subject, BUDGET, clean, [distances]).data["worst_by"].tolist() == [-1, -1, -1, -1]


def test_a_certificate_of_a_larger_ball_holds_in_the_smaller_and_not_the_other_way(subject, write, clean):
    wide = write("wide", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 5], region=PerturbationBudget(Norm.LINF, 0.2))
    tight = write("tight", AssessmentKind.FORMAL_VERIFICATION, [3, 3, 5, 5], region=PerturbationBudget(Norm.LINF, 0.05))
    layers = summarise(subject, BUDGET, clean, [wide, tight]).metrics["sandwich"]
    assert [(layer["epsilon"], layer["certified_accuracy"]) for layer in layers] == [
        (0.1, 0.25),
        (0.05, 0.5),
        (0.2, 0.25),
    ]


def test_verified_and_attacked_is_a_hard_failure_that_names_both(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    liar = write("liar", AssessmentKind.FORMAL_VERIFICATION, [5, 3, 5, 5])
    summary = summarise(subject, BUDGET, clean, [attack, liar])
    assert summary.metrics["hard_failures"] == 1
    (line,) = summary.kwargs["hard_failures"]
    assert "sample b is verified by liar and broken by pgd" in line
    assert summary.caveats[0].code == "hard_failure"


def test_a_misclassified_sample_that_is_verified_is_a_hard_failure(subject, write, clean):
    liar = write("liar", AssessmentKind.FORMAL_VERIFICATION, [5, 5, 5, 3])
    assert summarise(subject, BUDGET, clean, [liar]).metrics["hard_failures"] == 1


def test_a_failed_hard_check_of_sanity_is_a_hard_failure(subject, write, clean):
    checks = [
        FindingRecord(id="B1", title="budget respected", severity="HARD", status="fail", value=2),
        FindingRecord(id="C3", title="x", severity="WARN", status="fail"),
        FindingRecord(id="B2", title="y", severity="HARD", status="pass"),
    ]
    summary = summarise(subject, BUDGET, clean, [], checks)
    assert summary.metrics["hard_failures"] == 1


def test_the_worst_case_is_of_the_samples_that_an_attack_drew(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [1, 2], moved(subject, 1, 0.05)[[1, 2]], keep=[1, 2])
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    summary = summarise(subject, BUDGET, clean, [attack, proof])
    layer = Layer.model_validate(summary.metrics["sandwich"][0])
    assert (layer.worst_case.value, layer.n_attacked, layer.n) == (0.5, 2, 4)
    assert (layer.certified.value, layer.certified_all.value, layer.robust_accuracy_at_most) == (0.0, 0.25, 0.5)
    assert layer.states == counts(misclassified=1, broken=1, certified=1, survived=1)
    assert layer.draws == (DrawRecord(name="pgd", n=2, selection="first"),)
    assert "first_samples" in {c.code for c in summary.caveats}


def test_samples_whose_logits_are_not_finite_under_attack_are_broken(subject, write, clean):
    """A prediction of -1 is also what a verifier without a counterexample leaves: the verdict decides."""
    nowhere = torch.full((4, 1, 1, 2), torch.nan)
    attack = write(
        "pgd", AssessmentKind.EMPIRICAL_ATTACK, [1, 2, 2, 1], subject.dataset.inputs, predictions=[-1, 0, 1, 0]
    )
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [5, 5, 5, 4], nowhere, predictions=[-1, -1, -1, -1])
    summary = summarise(subject, BUDGET, clean, [attack, proof])
    assert summary.data["worst_by"].tolist() == [0, -1, -1, -1]
    assert summary.metrics["worst_case_accuracy"] == 0.5


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_an_attack_at_another_epsilon_covers_nothing_at_this_one(subject, write, clean, epsilon):
    region = PerturbationBudget(Norm.LINF, epsilon)
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 2, 2, 2], subject.dataset.inputs, region)
    summary = summarise(subject, BUDGET, clean, [attack])
    assert summary.metrics["sandwich"][0]["states"] == counts(misclassified=1, not_attacked=3)
    assert "not_attacked" in {c.code for c in summary.caveats}
    assert [layer["n_attacked"] for layer in summary.metrics["sandwich"]] == [0, 4]


@pytest.mark.parametrize(("epsilon", "covered"), [(None, 4), (0.2, 4), (0.05, 0)])
def test_a_minimum_norm_attack_covers_every_budget_up_to_its_cap(subject, write, clean, epsilon, covered):
    region = PerturbationBudget(Norm.LINF, epsilon)
    attack = write(
        "fmn", AssessmentKind.EMPIRICAL_ATTACK, [2, 2, 2, 2], subject.dataset.inputs, region, minimum_norm=True
    )
    assert summarise(subject, BUDGET, clean, [attack]).metrics["sandwich"][0]["n_attacked"] == covered


def test_certificates_of_another_function_neither_certify_nor_contradict(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    twin = write("twin", AssessmentKind.FORMAL_VERIFICATION, [3, 3, 3, 3], digest="float twin")
    smoothed = write("smooth", AssessmentKind.FORMAL_VERIFICATION, [3, 3, 3, 3], categories={SMOOTHED_MODEL})
    summary = summarise(subject, BUDGET, clean, [attack, twin, smoothed])
    assert summary.metrics["sandwich"][0]["states"] == counts(misclassified=1, broken=1, survived=2)
    assert summary.metrics["hard_failures"] == 0


def test_a_sample_whose_attack_ended_in_an_error_is_not_attacked(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 6, 2, 2], subject.dataset.inputs)
    layer = summarise(subject, BUDGET, clean, [attack]).metrics["sandwich"][0]
    assert layer["states"] == counts(misclassified=1, survived=2, not_attacked=1)


def test_an_attack_on_a_subset_is_said(subject, write, clean):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [1, 2], moved(subject, 1, 0.05)[[1, 3]], keep=[1, 3])
    summary = summarise(subject, BUDGET, clean, [attack])
    assert summary.data["worst_by"].tolist() == [-1, 0, -1, -1]
    assert "partly_attacked" in [c.code for c in summary.caveats]
    assert "nothing_verified" in [c.code for c in summary.caveats]


def test_nothing_but_clean_says_nothing_of_robustness(subject, clean):
    summary = summarise(replace(subject), BUDGET, clean, [])
    assert "certified_accuracy" not in summary.metrics
    assert Verdict.ATTACK_SUCCEEDED == 1


def test_headline_metrics_lead_with_the_sandwich(subject, write, clean, tmp_path):
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    result = summarise(subject, BUDGET, clean, [proof])
    summary = write_artifacts(result, tmp_path / "summary", subject, started=0)
    metrics = headline_metrics(summary, clean, [proof])
    assert list(metrics)[:2] == ["certified", "clean"]  # a verifier is no attack: there is no worst case
    assert metrics["certified"]["accuracy"] == metrics["certified"]["accuracy_all"] == 0.25
    assert metrics["certified"]["n"] == 4
    lists = [key for group in ("certified",) for key, v in metrics[group].items() if isinstance(v, list)]
    assert lists == []  # of a thousand classes, too, it holds the extremes alone


def test_of_the_sandwich_the_headline_is_the_weakest_class_and_the_gap_by_names_that_the_gate_knows(
    subject, write, clean, tmp_path
):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 2, 2, 2], subject.dataset.inputs)
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 3, 5, 4])
    result = summarise(subject, BUDGET, clean, [attack, proof])
    metrics = headline_metrics(write_artifacts(result, tmp_path / "s", subject, started=0), clean, [attack, proof])
    assert metrics["worst_case"]["class_gap"] == 0.5  # left holds whole, of right's two samples one is wrong at first
    assert metrics["worst_case"]["weakest_class_accuracy"] == 0.5
    assert metrics["certified"]["class_gap"] == 1.0
    params = validate({
        "data": {}, "model": {}, "budget": {"norm": "Linf", "epsilon": 0.1},
        "attacks": {"pgd": {"library": "torchattacks", "algorithm": "PGD"}},
    })  # fmt: skip
    every, _ = metric_names(params)
    assert {f"worst_case/{key}" for key in metrics["worst_case"]} <= {*every}


def test_no_two_bars_of_the_sandwich_share_a_name_since_dvc_would_stack_them(subject, write, clean, tmp_path):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    summary = write_artifacts(summarise(subject, BUDGET, clean, [attack, proof]), tmp_path / "s", subject, started=0)
    write_series(summary, [attack, proof], tmp_path)
    rows = list(csv.DictReader((tmp_path / "sandwich.csv").open()))
    assert len({row["bar"] for row in rows}) == len(rows)
    accuracy = {row["end"]: float(row["accuracy"]) for row in rows}
    assert accuracy == {"certified_accuracy": 0.25, "worst_case_accuracy": 0.5, "clean_accuracy": 0.75}
    assert {row["n"] for row in rows} == {"4"}
    assert all(float(row["ci_low"]) <= float(row["accuracy"]) <= float(row["ci_high"]) for row in rows)


def test_what_was_not_tried_says_nothing_per_class(subject, write, clean):
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    assert "certified_class_gap" in summarise(subject, BUDGET, clean, [proof]).metrics
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    assert not [key for key in summarise(subject, BUDGET, clean, [attack]).metrics if key.startswith("certified")]


def test_the_tensors_of_a_summary_give_what_it_states_per_class(subject, write, clean, tmp_path):
    attack = write("pgd", AssessmentKind.EMPIRICAL_ATTACK, [2, 1, 2, 2], moved(subject, 1, 0.05))
    proof = write("crown", AssessmentKind.FORMAL_VERIFICATION, [3, 5, 5, 4])
    result = summarise(subject, BUDGET, clean, [attack, proof])
    summary = write_artifacts(result, tmp_path / "summary", subject, started=0)
    assert "worst_case_class_gap" in summary.metrics
    assert list(differences(summary.metrics, of_summary(summary))) == []
    flattered = {**summary.metrics, "certified_class_gap": 0.0}
    assert [line.split(":")[0] for line in differences(flattered, of_summary(summary))] == ["certified_class_gap"]
