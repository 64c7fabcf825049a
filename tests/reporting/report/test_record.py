"""The report as data: every sample under every assessment, and a manifest of the files that people read."""

import hashlib
import json

import pytest
import torch

from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.core.contracts import Verdict
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.records.files import write_json
from windtunnel.reporting.report.record import NOT_ASSESSED, write_record

NAMES = ["fgsm", "pair"]


@pytest.fixture
def record(reports):
    write_json({"clean": {"accuracy": 1.0}}, reports / "metrics.json")
    (reports / "report.pdf").write_bytes(b"the pdf")

    def record(names=NAMES, folder="report"):
        write_record(reports, names, [reports / "report.pdf"], reports / folder, started=0)
        return read_artifacts(reports / folder)

    return record


def test_it_holds_every_sample_under_every_assessment(record, reports):
    found, summary = record(), read_artifacts(reports / "summary")
    assert found.metadata.model_dump(mode="json")["name"] == "report"
    assert found.metadata.model_dump(mode="json")["kwargs"]["assessments"] == NAMES
    for i, name in enumerate(NAMES):
        mine = read_artifacts(reports / "robustness" / name)
        assert torch.equal(found.tensor("assessment_verdicts")[i], mine.tensor("verdicts"))
        assert torch.equal(found.tensor("assessment_predictions")[i], mine.tensor("perturbed_predictions"))
        assert torch.equal(found.tensor("assessment_distances")[i], mine.tensor("perturbation_distance"))
    for key in ("verdicts", "certified_verdicts", "worst_by", "perturbation_distance"):
        assert torch.equal(found.tensor(key), summary.tensor(key))
    worst = float((found.tensor("verdicts") != Verdict.ATTACK_SUCCEEDED).double().mean())
    assert found.metrics["worst_case_accuracy"] == worst
    assert found.metrics["headline"] == {"clean": {"accuracy": 1.0}}


def test_an_assessment_of_some_samples_leaves_the_others_not_assessed(record, reports, digits_subject):
    few = digits_subject.subset(torch.arange(3, 8))
    result = sweep("pair", SweepEntry(epsilons=[0, 0.1]), Budget(epsilon=0.1), few)
    write_artifacts(result, reports / "robustness" / "pair", few, started=0)
    verdicts = record().tensor("assessment_verdicts")[1]
    assert (verdicts[3:8] != NOT_ASSESSED).all()
    assert (verdicts[:3] == NOT_ASSESSED).all()
    assert (verdicts[8:] == NOT_ASSESSED).all()


def test_the_manifest_has_the_digest_of_each_file_and_the_caveats_name_their_assessment(record, reports):
    path = reports / "robustness" / "fgsm" / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "caveats": [{"code": "x", "text": "Only one step."}]}))
    found = record()
    digest = hashlib.sha256(b"the pdf").hexdigest()
    assert found.metadata.model_dump(mode="json")["kwargs"]["files"] == {"report.pdf": {"bytes": 7, "sha256": digest}}
    assert {"code": "x", "text": "Only one step.", "assessment": "fgsm"} in found.metadata.model_dump(mode="json")[
        "caveats"
    ]
    assert "reproducibility" in {row["code"] for row in found.metadata.model_dump(mode="json")["caveats"]}


def test_two_records_of_one_run_are_equal_bytes(record, reports):
    record(folder="one")
    record(folder="two")
    for file in ("robustness_data.pt", "metadata.json"):
        assert (reports / "one" / file).read_bytes() == (reports / "two" / file).read_bytes()
