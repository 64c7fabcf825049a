"""The witness on whole runs: what it catches under every norm, what it costs, and what it stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gallery.case import params_of, run_in
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance, within
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.assess import result_of
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import registry, run_check
from windtunnel.evaluation.sanity.witness import attack_passes, fewest_breakable
from windtunnel.operations.stages.sanity import announced_cost
from windtunnel.records.findings import FindingRecord

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


@pytest.mark.parametrize(
    ("broken", "tried", "survivors", "at_least"), [(0, 20, 60, 0), (14, 50, 50, 14), (20, 20, 20, 20), (1, 1, 1, 1)]
)
def test_the_lower_bound_is_exact_where_every_survivor_was_tried(
    broken: int, tried: int, survivors: int, at_least: int
) -> None:
    assert fewest_breakable(broken, tried, survivors) == at_least


def test_the_lower_bound_holds_in_nineteen_of_twenty_draws() -> None:
    generator = np.random.default_rng(0)
    survivors, breakable, tried = 100, 30, 20
    draws = generator.hypergeometric(breakable, survivors - breakable, tried, 2000)
    too_high = np.mean([fewest_breakable(int(k), tried, survivors) > breakable for k in draws])
    assert too_high <= 0.05
