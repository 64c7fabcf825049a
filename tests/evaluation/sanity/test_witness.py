"""The witness on whole runs: what it catches under every norm, what it costs, and what it stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gallery.case import params_of, run_in
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.distances import distance, within
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity.assess import result_of
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import registry, run_check
from windtunnel.evaluation.sanity.witness import Claim, _drawn, attack_passes, fewest_breakable
from windtunnel.operations.stages.sanity import announced_cost
from windtunnel.records.findings import FindingRecord
from windtunnel.records.regions import PerturbationBall

NORMS = {"Linf": 0.12, "L2": 0.8, "L1": 4.0}
ALGORITHM = {"Linf": "LinfPGD", "L2": "L2PGD", "L1": "SparseL1DescentAttack"}


def look(evidence: Evidence) -> FindingRecord:
    return run_check(registry()["D15"], evidence, evidence.params.sanity)


def idle_run(subject: Subject, norm: str, folder: Path) -> Evidence:
    """A run at one budget whose only attack returns random noise that it never tried."""
    library = {"library": "foolbox", "algorithm": ALGORITHM[norm], "budget": {"steps": 5}}
    run = {"budget": {"norm": norm, "epsilon": NORMS[norm]}, "attacks": {"pgd": library}}
    evidence = run_in(folder, subject, params_of(run))
    data = dict(evidence.assessments[0].artifacts.data)
    data.update(perturbed_inputs=data["clean_inputs"], perturbed_predictions=data["clean_predictions"])
    artifacts = replace(evidence.assessments[0].artifacts, data=data)
    return replace(evidence, assessments=(replace(evidence.assessments[0], artifacts=artifacts),), notes={})


@pytest.mark.parametrize("norm", list(NORMS))
def test_an_attack_that_does_nothing_is_caught_under_every_norm(
    norm: str, mlp_subject: Subject, tmp_path: Path
) -> None:
    evidence = idle_run(mlp_subject.subset(torch.arange(60)), norm, tmp_path)
    finding = look(evidence)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HARD), finding
    assert f"at {norm} " in finding.reason
    passes = sum(int(one.result.passes.sum()) for one in evidence.notes["witness"])
    assert passes <= 4000
    stored = result_of(evidence, evidence.params.sanity, [finding]).data["witness"]
    clean = evidence.subject.dataset.inputs[stored["samples"]]
    assert within(distance(Norm(norm), stored["inputs"], clean), NORMS[norm]).all()
    assert torch.equal(evidence.subject.classifier.predict(stored["inputs"]), stored["predictions"])
    assert (stored["predictions"] != evidence.subject.dataset.targets[stored["samples"]]).all()


@pytest.mark.parametrize("family", ["attacks", "verification"])
def test_a_run_of_one_family_alone_has_a_witness_and_an_announced_cost(
    mlp_subject: Subject, tmp_path: Path, family: str
) -> None:
    entry = {"attacks": ("torchattacks", "FGSM"), "verification": ("auto-LiRPA", "crown")}[family]
    run = {
        "budget": {"norm": "Linf", "epsilon": 0.05},
        "attacks": {},
        family: {"one": dict(zip(("library", "algorithm"), entry, strict=True))},
    }
    evidence = run_in(tmp_path, mlp_subject.subset(torch.arange(12)), params_of(run))
    assert "passes" in announced_cost(evidence)
    assert (attack_passes(evidence) > 0) is (family == "attacks")
    assert look(evidence).status not in (Status.NOT_APPLICABLE, Status.NOT_RUN)


def test_a_python_function_gets_half_of_the_queries_from_the_witness(mlp_subject: Subject, tmp_path: Path) -> None:
    small = mlp_subject.subset(torch.arange(40))
    evidence = idle_run(small, "Linf", tmp_path)
    inner = small.classifier

    def predict(batch: np.ndarray) -> np.ndarray:
        return inner.logits(torch.from_numpy(batch)).softmax(1).numpy()

    module = PredictFunction(predict)
    classifier = replace(inner, module=module, capabilities=frozenset(c for c in inner.capabilities if c != "autograd"))
    settings = evidence.params.sanity.model_copy(update={"queries": 600})
    params = evidence.params.model_copy(update={"sanity": settings})
    paid = replace(evidence, subject=replace(evidence.subject, classifier=classifier), params=params, notes={})
    paid.notes["randomness"] = (0.0, [40])
    before = module.queries_asked
    assert look(paid).status is not Status.NOT_RUN
    assert 0 < module.queries_asked - before <= 300


def test_fifteen_points_too_many_of_many_samples_are_hard(
    linear_subject: Subject, digits: tuple[Dataset, Dataset], tmp_path: Path
) -> None:
    run = {
        "budget": {"norm": "Linf", "epsilon": 0.05},
        "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM"}},
    }
    many = subject_of(linear_subject.classifier, digits[1].subset(torch.arange(600)))
    evidence = run_in(tmp_path, many, params_of(run))
    attack = evidence.assessments[0]
    n, broken = len(evidence.ids), attack.succeeded.nonzero().flatten()
    data = {
        key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in attack.artifacts.data.items()
    }
    for seed in range(3):
        chosen = broken[torch.randperm(len(broken), generator=torch.Generator().manual_seed(seed))[: int(0.15 * n)]]
        for key, clean in (("perturbed_inputs", "clean_inputs"), ("perturbed_predictions", "clean_predictions")):
            data[key] = attack.artifacts.data[key].clone()
            data[key][chosen] = attack.artifacts.data[clean][chosen]
        data["verdicts"] = attack.artifacts.data["verdicts"].clone()
        data["verdicts"][chosen] = int(Verdict.ATTACK_FAILED)
        weakened = replace(attack, artifacts=replace(attack.artifacts, data=dict(data)))
        of_run = replace(evidence, assessments=(weakened,), notes={})
        assert look(of_run).severity is Severity.HARD
        (testimony,) = of_run.notes["witness"]
        assert testimony.in_full < len(testimony.indices) < int(testimony.claim.survived.sum())
        assert int(testimony.result.passes.sum()) <= 4000


@pytest.mark.parametrize(
    ("broken", "tried", "survivors", "at_least"), [(0, 20, 60, 0), (14, 50, 50, 14), (20, 20, 20, 20), (1, 1, 1, 1)]
)
def test_the_lower_bound_is_exact_where_every_survivor_was_tried(
    broken: int, tried: int, survivors: int, at_least: int
) -> None:
    assert fewest_breakable(broken, tried, survivors) == at_least


@pytest.mark.parametrize("more", [0, 90])
def test_the_front_of_the_draw_has_survivors_and_certified_samples(more: int) -> None:
    survived = torch.arange(500) > 0
    claim = Claim(PerturbationBall(Norm.LINF, 0.1), survived, ~survived, 500, ("pgd",), True)
    indices, front = _drawn(claim, 20, more, 0)
    assert (indices[:front] == 0).sum() == 1
    assert front == 21
    assert max(front, more) <= len(indices) <= max(front, more + 1)
    assert len(indices.unique()) == len(indices)


def test_the_lower_bound_holds_in_nineteen_of_twenty_draws() -> None:
    generator = np.random.default_rng(0)
    survivors, breakable, tried, further = 100, 30, 20, 30
    draws = generator.hypergeometric(breakable, survivors - breakable, tried, 2000)
    too_high = np.mean([fewest_breakable(int(k), tried, survivors) > breakable for k in draws])
    assert too_high <= 0.05
    beyond = generator.hypergeometric(breakable - draws, survivors - tried - breakable + draws, further)
    bounds = [
        max(
            fewest_breakable(int(k), tried, survivors, 0.025),
            fewest_breakable(int(k + m), tried + further, survivors, 0.025),
        )
        for k, m in zip(draws, beyond, strict=True)
    ]
    assert np.mean(np.array(bounds) > breakable) <= 0.05
