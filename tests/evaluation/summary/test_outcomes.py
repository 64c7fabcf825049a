"""The record of outcomes: its rows are the metrics, its protocol is all that decides them beside the model."""

import shutil
from pathlib import Path

import pytest

from windtunnel.boundary.params import load_params
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.operations.stages.run import run_stage
from windtunnel.params.load import entries
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import read_json
from windtunnel.records.gate import Outcomes, read_record
from windtunnel.records.layout import METRICS, SUMMARY
from windtunnel.registry.plugins import families

PARAMS = """
data: {source: digits, samples: {n: 30, selection: stratified}}
model: {train: {architecture: mlp, epochs: 4}}
budget: {norm: Linf, epsilon: EPSILON}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  few: {library: torchattacks, algorithm: FGSM, samples: {n: 10, selection: random}, batch_size: 4}
sweeps: {curve: {epsilons: [0, 0.05]}}
verification:
  crown: {library: auto-LiRPA, algorithm: crown}
  smooth:
    library: windtunnel
    algorithm: smoothing
    budget: {norm: L2, epsilon: 0.1}
    params: {n0: 20, n: 200, sigma: 0.25}
    samples: {n: 8}
corruptions: {fog: {corruptions: [fog, contrast], severities: [1, 5], upsample: 32, samples: {n: 12}}}
queries: {evoba: {algorithm: EvoBA, params: {generation_size: 8, generations: 5}, samples: {n: 12}}}
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "params.yaml").write_text(PARAMS.replace("EPSILON", "0.03"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for stage in ("resolve", "prepare", "train", "clean"):
            run_stage(stage)
        for family, name, _ in entries(load_params()):
            run_stage(families()[family].stage, name)
        run_stage("summary")
    return folder


def test_the_mean_of_every_row_is_the_metric_of_that_name(run):
    record, metrics = read_record(run / SUMMARY / "outcomes.json"), flatten(read_json(run / METRICS))
    assert set(record.outcomes) >= {
        "clean/accuracy", "certified/accuracy", "worst_case/accuracy", "fgsm/adversarial_accuracy",
        "few/adversarial_accuracy", "crown/certified_accuracy", "fog/corrupted_accuracy",
    }  # fmt: skip
    for name, row in record.outcomes.items():
        held = [int(one) for one in row.held if one != "-"] if isinstance(row, Outcomes) else [
            one / row.images for one in row.right if one is not None
        ]  # fmt: skip
        share = sum(held) / len(held)
        group, metric = name.split("/")
        known = metrics.get(name) or read_artifacts(run / "reports" / "robustness" / group).metrics[metric]
        assert share == pytest.approx(known), name
    assert record.outcomes["few/adversarial_accuracy"].held.count("-") == 20
    assert len(record.samples) == 30
    assert record.outcomes["fog/corrupted_accuracy"].images == 4
    assert sum(record.outcomes["fog/corrupted_accuracy"].assessed) == 12


def changed(run: Path, tmp_path: Path, monkeypatch, old: str, new: str) -> set[str]:
    """The metrics whose protocol is another one after an edit of params.yaml."""
    shutil.copytree(run, tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    text = Path("params.yaml").read_text()
    assert old in text
    Path("params.yaml").write_text(text.replace(old, new))
    run_stage("summary")
    before, after = (read_record(folder / SUMMARY / "outcomes.json") for folder in (run, Path()))
    # The attacks did not run again: at another budget they cover nothing, and there is no worst case to compare.
    rows = {name: after.outcomes.get(name) for name in before.outcomes}
    return {name for name, row in rows.items() if row is None or before.outcomes[name].protocol != row.protocol}


def test_another_setting_of_an_attack_is_another_protocol_for_it_and_for_what_counts_it(run, tmp_path, monkeypatch):
    names = changed(run, tmp_path, monkeypatch, "batch_size: 4", "batch_size: 5")
    assert names == {"few/adversarial_accuracy", "worst_case/accuracy", "certified/accuracy", "certified/accuracy_all"}


def test_another_budget_is_another_protocol_for_all_but_the_clean_accuracy(run, tmp_path, monkeypatch):
    names = changed(run, tmp_path, monkeypatch, "epsilon: 0.03", "epsilon: 0.02")
    budgeted = set(read_record(run / SUMMARY / "outcomes.json").outcomes)
    assert names == budgeted - {"clean/accuracy", "fog/corrupted_accuracy"}


def test_another_suite_of_corruptions_is_another_protocol_for_it_alone(run, tmp_path, monkeypatch):
    assert changed(run, tmp_path, monkeypatch, "[1, 5]", "[1, 4]") == {"fog/corrupted_accuracy"}


def test_figures_and_the_model_are_no_part_of_the_protocol(run, tmp_path, monkeypatch):
    assert not changed(run, tmp_path, monkeypatch, "epochs: 4", "epochs: 5")
