"""What the seed decides, what it does not, and that every run says so."""

import time
from dataclasses import replace

import pytest
import torch

from windtunnel.assessments.attacks.table import ALGORITHMS as ATTACKS
from windtunnel.assessments.corruptions.table import ALGORITHMS as CORRUPTIONS
from windtunnel.assessments.latent.table import ALGORITHMS as LATENT
from windtunnel.assessments.verification.table import ALGORITHMS as VERIFICATION
from windtunnel.core.contracts import PerturbationBudget, PerturbationDistribution, Randomness, Semantics
from windtunnel.core.seeds import ONE_RANDOM_RUN
from windtunnel.evaluation.summary.reproducibility import decisions_of_seed, reproducibility, reproducibility_caveat
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import base_data, base_kwargs, write_artifacts
from windtunnel.records.findings import FindingRecord
from windtunnel.records.result import AssessmentResult

EVERY = (*ATTACKS, *CORRUPTIONS, *LATENT, *VERIFICATION)
FOG = next(row for row in CORRUPTIONS if row.name == "fog")
CROWN = next(row for row in VERIFICATION if row.name == "crown")


@pytest.fixture
def write(linear_subject, tmp_path):
    subject = linear_subject.subset(torch.arange(4))

    def write(name, algorithm, **more):
        region = (
            PerturbationDistribution(name, 1) if algorithm.norm is None else PerturbationBudget(algorithm.norm, 0.1)
        )
        result = AssessmentResult(
            name, Semantics(algorithm, region), {**base_data(subject, torch.full((4,), 5)), **more.pop("data", {})},
            {"clean_accuracy": 1.0, **more}, kwargs=base_kwargs(subject),
        )  # fmt: skip
        return write_artifacts(result, tmp_path / name, subject, started=time.time())

    return write


def test_every_stochastic_algorithm_of_every_family_carries_the_caveat_and_no_other(write):
    for algorithm in EVERY:
        codes = [caveat.code for caveat in write("it", algorithm).caveats]
        assert codes.count(ONE_RANDOM_RUN) == (algorithm.randomness is not Randomness.DETERMINISTIC), algorithm.key


def test_the_run_says_what_depends_on_the_seed_and_what_nobody_controls(write):
    fog, crown = write("fog", FOG), write("crown", CROWN, timeouts=2)
    checks = [FindingRecord(id="A2", title="a random model", severity="WARN", status="warn")]
    facts = reproducibility([fog, crown], 7, "cpu", checks)
    assert (facts["seed"], facts["seeded"], facts["deterministic"]) == (7, ["fog"], ["crown"])
    late, model = facts["not_controlled"]
    assert "crown ran out of time" in late
    assert "A2" in model
    text = reproducibility_caveat(facts).text
    assert text.startswith("fog is randomised (seed 7); another seed may give other results. crown is deterministic.")
    assert reproducibility([fog], 0, "cpu", [])["not_controlled"] == []
    assert "cuda" in reproducibility([], 0, "cuda:0", [])["not_controlled"][0]


def test_the_summary_of_every_run_carries_it(write, linear_subject):
    subject = replace(linear_subject.subset(torch.arange(4)), seed=3)
    summary = summarise(subject, PerturbationBudget(CROWN.norm, 0.1), write("clean", FOG), [write("crown", CROWN)])
    (caveat,) = [c for c in summary.caveats if c.code == "reproducibility"]
    assert summary.kwargs["reproducibility"]["deterministic"] == ["crown"]
    assert "crown" in caveat.text
    assert summary.semantics.algorithm.randomness is Randomness.DETERMINISTIC


def test_a_summary_is_stochastic_where_what_it_joins_is_and_has_one_caveat_of_it(write, linear_subject, tmp_path):
    subject = linear_subject.subset(torch.arange(4))
    budget, clean = PerturbationBudget(CROWN.norm, 0.1), write("clean", FOG)
    result = summarise(subject, budget, clean, [write("crown", CROWN), write("fog", FOG)])
    written = write_artifacts(result, tmp_path / "summary", subject, started=time.time())
    assert written.metadata.semantics.stochastic
    codes = [caveat.code for caveat in written.caveats]
    assert (codes.count("reproducibility"), codes.count(ONE_RANDOM_RUN)) == (1, 0)


def test_what_the_seed_decides_before_any_assessment_comes_first():
    params = Params.model_validate({
        "data": {"source": "digits", "samples": {"n": 200, "selection": "stratified"}},
        "model": {"source": "train"}, "generators": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": 0.1},
        "attacks": {
            "pgd": {"library": "torchattacks", "algorithm": "PGD", "samples": {"n": 5, "selection": "random"}},
            "fgsm": {"library": "torchattacks", "algorithm": "FGSM", "samples": {"n": 5, "selection": "random", "seed": 3}},
        },
    })  # fmt: skip
    decided = decisions_of_seed(params)
    assert decided == ["training the model", "splitting the digits", "selecting the samples", "training the generators",
                       "selecting the subset of pgd"]  # fmt: skip
    text = reproducibility_caveat(reproducibility([], 3, "cpu", [], decided)).text
    assert text.startswith("Before any assessment, seed 3 decides: training the model; splitting the digits; ")
    assert "every seed" not in text
    fixed = Params.model_validate({
        "data": {"source": "npz", "path": "x.npz", "samples": {"n": 9, "selection": "random", "seed": 1}},
        "model": {"source": "onnx", "path": "m.onnx"}, "budget": {"norm": "Linf", "epsilon": 0.1},
    })  # fmt: skip
    assert decisions_of_seed(fixed) == []
