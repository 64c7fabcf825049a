"""Honest evaluations of honest models: what a strong defence or a sound attack leaves behind is no sign of a lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.evaluation.sanity.conftest import assessed
from tests.evaluation.sanity.tamper import failing
from windtunnel.assessments.attacks import assess as attack_pipeline
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity import strength
from windtunnel.evaluation.sanity.check import Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import registry, run_check
from windtunnel.evaluation.validate import validate

pytestmark = pytest.mark.slow

PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 5, "step_size": 0.002}}
SQUARE = {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 30}}
NOTHING_BROKEN: dict[str, dict[str, object]] = {
    "ensemble": {
        "many": {"library": "torchattacks", "algorithm": "MultiAttack", "params": {"attacks": ["PGD", "APGD"]}}
    },
    "lone Square": {"square": SQUARE},
    "lone APGD": {"apgd": {"library": "torchattacks", "algorithm": "APGD", "budget": {"steps": 5}}},
    "survivors": {"pgd": PGD, "square": {**SQUARE, "on": {"survivors_of": ["pgd"]}}},
    "repeated noise": {"noise": {"library": "foolbox", "algorithm": "LinfRepeatedAdditiveUniformNoiseAttack"}},
}


def run_of(subject: Subject, attacks: dict[str, object], folder: Path, epsilon: float = 0.005) -> Evidence:
    run = {"data": {"source": "digits"}, "model": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": epsilon}}
    return assessed(subject, validate({**run, "attacks": attacks}), folder)


def status(check: str, evidence: Evidence) -> Status:
    settings = evidence.params.sanity.model_copy(update={"profile": "full"})
    return run_check(registry()[check], evidence, settings).status


@pytest.fixture(scope="module")
def robust(robust_subject: Subject) -> Subject:
    return robust_subject.subset(robust_subject.clean_correct.nonzero().flatten()[:40])


@pytest.mark.parametrize("attacks", NOTHING_BROKEN.values(), ids=list(NOTHING_BROKEN))
def test_an_attack_that_returns_the_clean_input_of_what_it_did_not_break_is_no_idle_attack(
    attacks: dict[str, object], robust: Subject, tmp_path: Path
) -> None:
    evidence = run_of(robust, attacks, tmp_path)
    assert float(evidence.assessments[-1].succeeded.double().mean()) < 0.05
    for check in ("A6", "B4", "D6"):
        assert status(check, evidence) in (Status.PASS, Status.NOT_APPLICABLE), check


@pytest.mark.parametrize(
    "attacks", [{"quick": {"library": "windtunnel", "algorithm": "quick"}}, {"pgd": PGD}], ids=["quick", "pgd"]
)
def test_an_attack_that_never_asked_the_model_is_idle(
    attacks: dict[str, object], robust: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack_pipeline, "adapter_of", lambda _: lambda request, *_: request.inputs)
    assert status("B4", run_of(robust, attacks, tmp_path)) is Status.FAIL


@pytest.mark.parametrize("order", [("wide", "few"), ("few", "wide")], ids="-".join)
@pytest.mark.parametrize("check", ["D1", "D2", "D3"])
def test_strength_of_one_attack_is_a_share_of_its_own_samples(
    check: str, order: tuple[str, str], robust: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"wide": PGD, "few": {**PGD, "samples": {"n": 8}}}
    evidence = failing(run_of(robust, {name: entries[name] for name in order}, tmp_path), "wide", "few")

    def stronger(_: Evidence, assessment: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(assessment.rows)
        return torch.arange(n), torch.full((n,), assessment.name == "few")

    monkeypatch.setattr(strength, "rerun", stronger)
    settings = evidence.params.sanity.model_copy(update={"profile": "full"})
    finding = run_check(registry()[check], evidence, settings)
    assert (finding.status, finding.value, finding.assessments) == (Status.WARN, 1.0, ("few",))
    assert set(finding.samples) == set(robust.dataset.ids[:8])
