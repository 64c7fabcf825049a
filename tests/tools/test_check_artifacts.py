"""A number without evidence, or a file without its contract, is found after a run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.check_artifacts import _check_contract, _check_manifest
from tools.recompute import differences, of_summary
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.metrics import attack_metrics
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import SampleState
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.records.files import METADATA_FILE, read_json, write_json


@pytest.fixture
def attack(linear_subject, tmp_path):
    few = linear_subject.subset(torch.arange(30))
    result = assess("fgsm", AttackEntry(library="torchattacks", algorithm="FGSM"), Budget(epsilon=0.05), few)
    return write_artifacts(result, tmp_path / "fgsm", few, started=0), result.semantics.algorithm


def test_metrics_that_the_tensors_give_pass_and_others_are_named(attack):
    artifacts, algorithm = attack
    found = attack_metrics(artifacts.data, Norm.LINF, algorithm, 10)
    assert list(differences(artifacts.metrics, found)) == []
    flattered = {**artifacts.metrics, "adversarial_accuracy": 0.99, "invented": 1}
    lines = list(differences(flattered, found))
    assert any(line.startswith("adversarial_accuracy: 0.99 is stated") for line in lines)
    assert "invented: nothing recomputes it" in lines
    assert list(differences({"clean_accuracy": found["clean_accuracy"] * (1 + 1e-12)}, found)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("call_kwargs"), "call_kwargs"),
        (lambda m: m["semantics"].pop("objective"), r"semantics\.objective"),
        (lambda m: m["semantics"].update(sample_selection={}), "lacks how the samples were selected"),
        (lambda m: m["metrics"].update(nothing=None), "null, not omitted: nothing"),
        (lambda m: m.update(verdict_codes={"broken": 1}), "other verdict codes"),
        (
            lambda m: m.update(visualisers=[{"name": "Gone", "file": "gone.png", "scope": "assessor"}]),
            "lists gone.png, which is not there",
        ),
    ],
)
def test_what_the_contract_asks_for_and_is_not_there_is_named(attack, change, says):
    artifacts, _ = attack
    _check_contract(artifacts)
    metadata = read_json(artifacts.directory / METADATA_FILE)
    change(metadata)
    path = artifacts.directory / METADATA_FILE
    path.write_text(json.dumps(metadata))
    with pytest.raises(UserError, match=says):
        _check_contract(read_artifacts(artifacts.directory))


def test_a_report_that_was_changed_after_its_manifest_is_found(attack, tmp_path, monkeypatch):
    artifacts, _ = attack
    monkeypatch.chdir(tmp_path)
    Path("reports").mkdir()
    Path("reports/report.pdf").write_bytes(b"another")
    metadata = read_json(artifacts.directory / METADATA_FILE)
    metadata["kwargs"]["files"] = {"report.pdf": {"bytes": 7, "sha256": "0" * 64}}
    write_json(metadata, artifacts.directory / METADATA_FILE)
    with pytest.raises(UserError, match=r"report\.pdf: is not the file that .* lists"):
        _check_manifest(read_artifacts(artifacts.directory))


def test_the_rates_of_the_summary_come_from_its_tensors(attack):
    artifacts, _ = attack
    states, drawn = torch.full((30,), SampleState.SURVIVED.code), torch.arange(30) < 10
    data = {**artifacts.data, "sample_states": states, "drawn": drawn}
    kwargs = artifacts.metadata.kwargs.model_copy(update={"hard_failures": ()})
    metadata = artifacts.metadata.model_copy(update={"kwargs": kwargs})
    found = of_summary(replace(artifacts, data=data, metadata=metadata))
    assert (found["certified_accuracy"], found["worst_case_accuracy"]) == (0, 1)
    assert found["n_samples"] == 30
