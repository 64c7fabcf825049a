"""Known liars: small models and tools that fool a naive evaluation, each with the check that must catch it.

And two honest models, on which no HARD check and at most two WARNs may fire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.evaluation.sanity.conftest import L2, RUN, assessed
from tests.evaluation.sanity.tamper import (
    batchwise,
    changed,
    noisy,
    normalised_inputs,
    probabilities,
    quantised,
    saturated,
)
from windtunnel.assessments.attacks import assess as attack_pipeline
from windtunnel.boundary.data.load import load_dataset
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Verdict
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import run_checks
from windtunnel.evaluation.validate import validate
from windtunnel.params.data import Data
from windtunnel.records.findings import FindingRecord

pytestmark = pytest.mark.slow

# What must stay quiet for every liar that is a model: the tools and the statistics are sound.
SOUND_TOOLS = {"A7", "A9", "A17", "B1", "B2", "B5", "B8", "B9", "E14", "F1", "F4", "F6", "G1", "G2", "G3", "G7"}
SHORT: dict[str, object] = {
    **RUN,
    "attacks": {name: entry for name, entry in RUN["attacks"].items() if name in ("fgsm", "pgd", "square")},  # type: ignore[attr-defined]
    "verification": {},
    "corruptions": {},
    "sanity": {"profile": "standard", "thresholds": {"D11": 10, "F2": 0.5, "F8": 0.5}},
}


def subject_with(subject: Subject, module: nn.Module) -> Subject:
    classifier = Classifier(module.eval(), 10, (1, 8, 8), frozenset(Capability), f"liar {type(module)}", "liar")
    return subject_of(classifier, subject.dataset)


def findings_of(subject: Subject, folder: Path, run: dict[str, object] | None = None) -> dict[str, FindingRecord]:
    evidence = assessed(subject, validate(run or SHORT), folder)
    return evaluated(evidence)


def evaluated(evidence: Evidence) -> dict[str, FindingRecord]:
    return {f.id: f for f in run_checks(evidence, evidence.params.sanity)}


def flagged(findings: dict[str, FindingRecord]) -> set[str]:
    return {
        name
        for name, f in findings.items()
        if f.status in (Status.FAIL, Status.WARN) and f.severity is not Severity.INFO
    }


@pytest.fixture(scope="module")
def few(mlp_subject: Subject) -> Subject:
    return mlp_subject.subset(torch.arange(60))


MODEL_LIARS: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "quantised inputs": (quantised, "C1"),
    "saturated softmax": (saturated, "C1"),
    "random noise at inference": (noisy, "A2"),
    "batch statistics at inference": (batchwise, "A3"),
    "returns probabilities": (probabilities, "A4"),
}


@pytest.mark.parametrize("liar", list(MODEL_LIARS))
def test_model_that_lies_is_caught(liar: str, few: Subject, tmp_path: Path) -> None:
    make, check = MODEL_LIARS[liar]
    found = flagged(findings_of(subject_with(few, make(few.classifier.module)), tmp_path))
    assert check in found
    quiet = SOUND_TOOLS - ({"A7"} if liar == "batch statistics at inference" else set())
    assert not found & quiet, found & quiet


class After(nn.Module):
    """A module with a function of its logits as its output."""

    def __init__(self, module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.module(x))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda z: (z.softmax(1) * 256).round() / 256, Status.WARN),  # as TFLite's quantised softmax
        (lambda z: (z.softmax(1) > 0.5) * 2.0, Status.PASS),  # votes of two
        (lambda z: (z.softmax(1) * 256).round() / 256 - 1 / 256, Status.PASS),
        (lambda z: (z.sigmoid() * 256).round() / 256, Status.PASS),
    ],
)
def test_probabilities_in_steps_are_told_from_other_outputs_in_steps(
    change, status, few: Subject, tmp_path: Path
) -> None:
    subject = subject_with(few, After(few.classifier.module, change))
    assert (subject.clean_logits.sum(1) != 1).any()
    evidence = assessed(subject, validate({**SHORT, "attacks": {}, "sweeps": {}}), tmp_path)
    (finding,) = run_checks(evidence, evidence.params.sanity, ["A4"])
    assert finding.status is status


def test_normalisation_outside_the_model_is_caught(few: Subject, tmp_path: Path) -> None:
    assert "A5" in flagged(findings_of(normalised_inputs(few), tmp_path))


@pytest.mark.parametrize(("picked", "wanted"), [(True, Status.WARN), (False, Status.PASS)])
def test_samples_that_were_picked_for_being_easy_are_told_from_those_that_were_drawn(
    picked: bool, wanted: Status, digits_subject: Subject, tmp_path: Path
) -> None:
    _, train = load_dataset(Data(samples={"n": len(digits_subject.dataset), "selection": "stratified"}), 0)
    margins = SOFTMAX.margin_loss(digits_subject.clean_logits, digits_subject.dataset.targets)
    rows = margins.argsort()[:40] if picked else torch.arange(0, len(margins), 5)
    evidence = assessed(digits_subject.subset(rows), validate({**SHORT, "attacks": {}, "sweeps": {}}), tmp_path)
    (finding,) = run_checks(replace(evidence, train=train), evidence.params.sanity, ["A22"])
    assert finding.status is wanted
    assert ("easier than the training split" in finding.reason) is picked


def test_attack_that_does_nothing_is_caught(few: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_pipeline, "adapter_of", lambda _: lambda request, *_: request.inputs)
    found = flagged(findings_of(few, tmp_path))
    assert "B4" in found
    assert not found & {"A1", "A2", "A3", "A4", "A5", "B1", "B2", "B3", "C1", "C2"}


def test_attack_with_too_few_steps_is_caught(few: Subject, tmp_path: Path) -> None:
    lazy = {"pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 3, "step_size": 0.002}}}
    found = flagged(findings_of(few, tmp_path, {**SHORT, "attacks": lazy}))
    assert "D6" in found
    assert not found & (SOUND_TOOLS | {"C1", "C2", "B4"})


@pytest.mark.parametrize(("epsilon", "wanted"), [(0.9, Status.PASS), (0.3, Status.FAIL)])
def test_steps_that_cannot_reach_epsilon_are_no_fault_where_they_broke_every_sample(
    epsilon: float, wanted: Status, few: Subject, tmp_path: Path
) -> None:
    steps = {"steps": 20, "step_size": 0.03 if epsilon > 0.5 else 0.003}
    pgd = {"library": "torchattacks", "algorithm": "PGD", "budget": steps}
    run = {**SHORT, "budget": {"norm": "Linf", "epsilon": epsilon}, "attacks": {"pgd": pgd}, "sweeps": {}}
    evidence = assessed(few, validate(run), tmp_path)
    (finding,) = run_checks(evidence, evidence.params.sanity, ["D6"])
    assert finding.status is wanted, finding.reason


def test_success_that_is_not_in_the_saved_tensor_is_caught(few: Subject, tmp_path: Path) -> None:
    evidence = assessed(few, validate(SHORT), tmp_path)
    found = flagged(evaluated(changed(evidence, "pgd", lambda d: d.update(perturbed_inputs=d["clean_inputs"].clone()))))
    assert "B3" in found
    assert not found & {"A1", "A2", "A3", "A4", "A5", "A7", "C1", "C2", "F1", "G1"}


@pytest.mark.parametrize(("draws", "wanted"), [(8, Status.PASS), (1, Status.FAIL)])
def test_an_average_over_a_random_model_explains_verdicts_that_differ(
    draws: int, wanted: Status, few: Subject, tmp_path: Path
) -> None:
    pgd = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 10, "step_size": 0.02}, "eot": draws}
    subject = subject_with(few, noisy(few.classifier.module, 0.1))
    evidence = assessed(subject, validate({**SHORT, "attacks": {"pgd": pgd}, "sweeps": {}}), tmp_path)
    (finding,) = run_checks(evidence, evidence.params.sanity, ["B3"])
    assert finding.status is wanted, finding.reason


def test_unsound_verifier_is_caught(few: Subject, tmp_path: Path) -> None:
    run = {**SHORT, "verification": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}}}
    evidence = assessed(few, validate(run), tmp_path)
    found = flagged(evaluated(changed(evidence, "crown", lambda d: d["verdicts"].fill_(int(Verdict.VERIFIED)))))
    assert "E1" in found
    assert not found & (SOUND_TOOLS | {"B3", "B4", "C1"})


def test_corruption_that_ignores_its_seed_is_caught(
    few: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windtunnel.assessments.corruptions.corrupt import shim_imagecorruptions

    shim_imagecorruptions()
    import imagecorruptions

    generator = np.random.default_rng()
    monkeypatch.setattr(
        imagecorruptions, "corrupt", lambda image, *_, **__: generator.integers(0, 256, image.shape, dtype=np.uint8)
    )
    run = {**SHORT, "attacks": {}, "sweeps": {}, "corruptions": RUN["corruptions"], "sanity": {"profile": "full"}}
    evidence = assessed(few, validate(run), tmp_path)
    (finding,) = run_checks(evidence, evidence.params.sanity, ["E11"])
    assert finding.status is Status.FAIL


@pytest.mark.parametrize("kind", ["undefended", "adversarially trained"])
def test_honest_model_is_not_accused(
    kind: str, digits_subject: Subject, robust_subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tier, the documented thresholds, 200 samples: which are few, and F2 and D11 say so."""
    subject = digits_subject if kind == "undefended" else robust_subject
    strong = {
        **RUN["attacks"],
        "pgd_l2": {**RUN["attacks"]["pgd_l2"], "restarts": 5, "budget": {**L2, "steps": 60, "step_size": 0.1}},
    }  # type: ignore[dict-item, index]
    run = {**RUN, "attacks": strong, "data": {"source": "digits", "samples": {"n": 200}}, "sanity": {"profile": "full", "samples": 50},
           "verification": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}}, "corruptions": {}}  # fmt: skip
    found = evaluated(assessed(subject, validate(run), tmp_path))
    accused = {name: f.reason for name, f in found.items() if name in flagged(found)}
    assert not [name for name in accused if found[name].status is Status.FAIL], accused
    assert len(accused) <= 2, accused
