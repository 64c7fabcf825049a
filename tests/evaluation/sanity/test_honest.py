"""Honest evaluations of honest models: what a strong defence or a sound attack leaves behind is no sign of a lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.evaluation.sanity.conftest import assessed
from tests.evaluation.sanity.tamper import changed, failing
from windtunnel.assessments.attacks import assess as attack_pipeline
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity import model as model_checks
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
    "lone APGD, L2": {
        "apgd": {"library": "torchattacks", "algorithm": "APGD", "budget": {"norm": "L2", "epsilon": 0.02, "steps": 5}}
    },
    "lone APGDT": {"apgdt": {"library": "torchattacks", "algorithm": "APGDT", "budget": {"steps": 2}}},
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
    attacks: dict[str, object], robust: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        model_checks, "_unusual", lambda *_: ""
    )  # A6 would warn of the size of this epsilon, and end there
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


def pgd_of(steps: int, share: float, epsilon: float) -> dict[str, object]:
    return {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": steps, "step_size": share * epsilon}}


@pytest.mark.parametrize(
    ("steps", "share", "wanted"),
    [(20, 1 / 8, Status.PASS), (10, 1 / 4, Status.PASS), (100, 1 / 40, Status.PASS), (40, 1 / 10, Status.PASS),
     (20, 1 / 20, Status.WARN), (5, 1 / 8, Status.WARN), (1, 1 / 8, Status.WARN)],
)  # fmt: skip
def test_an_attack_is_unfinished_where_its_last_steps_gain_and_not_for_being_short(
    steps: int, share: float, wanted: Status, robust: Subject, tmp_path: Path
) -> None:
    """The last ten of twenty steps hold the way from the random start to the edge of the ball, which ends at the sixteenth."""
    evidence = run_of(robust, {"pgd": pgd_of(steps, share, 0.02)}, tmp_path, 0.02)
    assert status("D4", evidence) is wanted


@pytest.mark.parametrize(("lost", "wanted"), [(0, Status.PASS), (1, Status.PASS), (5, Status.WARN)])
def test_a_search_that_failed_for_one_sample_of_forty_did_not_fail_for_more_than_one_in_a_hundred(
    lost: int, wanted: Status, robust: Subject, tmp_path: Path
) -> None:
    deepfool = {"library": "foolbox", "algorithm": "L2DeepFoolAttack", "budget": {"norm": "L2", "epsilon": 0.5}}
    evidence = run_of(robust, {"deepfool": deepfool}, tmp_path)

    def lose(data: dict[str, torch.Tensor]) -> None:
        data["perturbed_predictions"] = (data["targets"] + 1) % 10
        data["perturbed_predictions"][:lost] = data["targets"][:lost]

    assert status("D10", changed(evidence, "deepfool", lose)) is wanted


SHORT_OF_STEPS = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 5, "step_size": 0.02}}


def test_an_attack_that_now_and_then_walks_past_an_example_is_a_warning(mlp_subject: Subject, tmp_path: Path) -> None:
    """PGD returns its last iterate: honest, and by some samples too weak."""
    evidence = run_of(mlp_subject, {"pgd": SHORT_OF_STEPS}, tmp_path, 0.1)
    settings = evidence.params.sanity.model_copy(update={"profile": "full"})
    finding = run_check(registry()["D5"], evidence, settings)
    assert finding.value, "the case is one where PGD walks past an example"
    assert finding.status is Status.WARN
    assert "seen and not returned in pgd" in finding.reason


def test_an_attack_that_returns_nothing_of_what_it_saw_fails(mlp_subject: Subject, tmp_path: Path) -> None:
    evidence = failing(run_of(mlp_subject, {"pgd": SHORT_OF_STEPS}, tmp_path, 0.1), "pgd")
    assert status("D5", evidence) is Status.FAIL


@pytest.mark.parametrize("order", [("wide", "few"), ("few", "wide")], ids="-".join)
@pytest.mark.parametrize("check", ["D1", "D2", "D3"])
def test_strength_of_one_attack_is_a_share_of_its_own_samples(
    check: str, order: tuple[str, str], robust: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"wide": PGD, "few": {**PGD, "samples": {"n": 8}}}
    evidence = failing(run_of(robust, {name: entries[name] for name in order}, tmp_path), "wide", "few")

    def stronger(_: Evidence, assessment: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(assessment.indices)
        return torch.arange(n), torch.full((n,), assessment.name == "few")

    monkeypatch.setattr(strength, "rerun", stronger)
    settings = evidence.params.sanity.model_copy(update={"profile": "full"})
    finding = run_check(registry()[check], evidence, settings)
    assert (finding.status, finding.value, finding.assessments) == (Status.WARN, 1.0, ("few",))
    assert set(finding.samples) == set(robust.dataset.ids[:8])
