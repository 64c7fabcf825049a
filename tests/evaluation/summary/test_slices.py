"""Slices: rates per camera or site with simultaneous intervals, in metrics, gate, comparison and report."""

import time
from dataclasses import replace
from shutil import copytree

import pytest
import torch

import windtunnel
from tools.recompute import differences, of_summary
from windtunnel.boundary.data.slices import MOST_SLICES, read_slices, slice_names
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import binomial_interval
from windtunnel.evaluation.gate.decide import decide
from windtunnel.evaluation.summary.slices import slice_metrics
from windtunnel.evaluation.validate import validate
from windtunnel.operations.stages.summary import write_summary
from windtunnel.params.results import Gate
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import read_json
from windtunnel.records.gate import OUTCOMES_FILE, read_record
from windtunnel.records.layout import Layout
from windtunnel.records.sandwich import layers_of
from windtunnel.reporting.compare.comparison import compare_assessment
from windtunnel.reporting.report.build import build_report

PARAMS = {
    "data": {"source": "digits"},
    "model": {"source": "train"},
    "budget": {"norm": "Linf", "epsilon": 0.05},
    "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM"}},
}
N = 40


@pytest.fixture(scope="module")
def run(linear_subject, tmp_path_factory):
    """Directory of a run whose samples are of camera A (the first 30) or B, and of site x (every second)."""
    folder, subject = tmp_path_factory.mktemp("sliced"), linear_subject.subset(torch.arange(N))
    data = subject.dataset
    result = windtunnel.assess(
        subject.classifier.module, data.inputs, data.targets, budget="Linf 0.05", attacks=["fgsm"], sanity=None
    )
    result.save(folder)
    names = read_artifacts(folder / "reports" / "robustness" / "clean").sample_names
    subject = replace(subject, dataset=replace(data, ids=tuple(names)))
    lines = [f"{name},camera,{'A' if i < 30 else 'B'}" for i, name in enumerate(names)]
    lines += [f"{name},site,x" for name in names[::2]]
    (folder / "slices.csv").write_text("\n".join(["sample,column,value", *lines]) + "\n")
    params = validate({**PARAMS, "data": {"source": "digits", "slices": str(folder / "slices.csv")}})
    return folder, params, subject, write_summary(params, subject, Layout(folder), time.time())


def test_each_slice_has_states_and_intervals_that_hold_at_once(run):
    summary = run[-1]
    rows = {(row["column"], row["value"]): row for row in summary.metrics["slices"]}
    assert set(rows) == {("camera", "A"), ("camera", "B"), ("site", "x")}
    held = summary.tensor("sample_states") >= 2
    row = rows["camera", "B"]
    assert (row["n"], row["n_attacked"], sum(row["states"].values())) == (10, 10, 10)
    assert row["worst_case_accuracy"] == pytest.approx(float(held[30:].double().mean()))
    expected = binomial_interval(int(held[30:].sum()), 10, 1 - 0.05 / 3)
    assert (row["worst_case_accuracy_ci_low"], row["worst_case_accuracy_ci_high"]) == pytest.approx(expected)
    alone = binomial_interval(int(held[30:].sum()), 10)
    assert expected[1] - expected[0] > alone[1] - alone[0]
    weakest = min(row["worst_case_accuracy"] for row in rows.values())
    assert summary.metrics["worst_case_weakest_slice_accuracy"] == weakest


def test_the_table_can_be_recomputed_from_the_tensors_alone(run):
    summary = run[-1]
    stated = {key: value for key, value in summary.metrics.items() if "slice" in key}
    assert stated
    assert not [*differences(stated, of_summary(summary))]


def test_metrics_json_outcomes_and_gate_know_each_slice(run):
    folder, _, _, summary = run
    layout = Layout(folder)
    metrics, record = read_json(layout.metrics), read_record(layout.summary / OUTCOMES_FILE)
    value = metrics["slices"]["camera"]["B"]["worst_case_accuracy"]
    row = record.outcomes["slices/camera/B/worst_case_accuracy"]
    assert row.held[:30] == "-" * 30
    assert row.held.count("1") / 10 == pytest.approx(value)
    name, layer = "slices/camera/B/worst_case_accuracy", layers_of(summary.metrics)[0]
    for floor, holds in ((value, True), (value + 0.01, False)):
        gate = Gate(minimum={name: floor}, minimum_samples=10)
        result = decide(gate, metrics, record, layers=[layer])
        assert all(condition.holds for condition in result.conditions) == holds
    assert next(c.value for c in decide(gate, metrics, record, layers=[layer]).conditions if c.name == "samples") == 10
    against = decide(Gate(maximum_regression={name: 0.9}), metrics, record, record, layers=[layer])
    assert next(c for c in against.conditions if "champion" in c.name).holds


def test_a_condition_on_a_slice_that_is_none_is_refused_before_the_run(run):
    _, params, _, _ = run
    content = params.model_dump(mode="json", exclude_unset=True)
    validate({**content, "gate": {"minimum": {"slices/camera/B/worst_case_accuracy": 0.5}}})
    with pytest.raises(UserError, match="Did you mean 'slices/camera/B/worst_case_accuracy'"):
        validate({**content, "gate": {"minimum": {"slices/camera/BB/worst_case_accuracy": 0.5}}})


def test_two_runs_are_compared_slice_by_slice(run, tmp_path):
    folder, _, _, summary = run
    copytree(folder / "reports" / "summary", tmp_path / "summary")
    pairs = compare_assessment("summary", summary, read_artifacts(tmp_path / "summary"))
    names = {pair.name: pair.table.n for pair in pairs}
    assert names["worst case, camera = B"] == 10
    assert names["worst case, site = x"] == 20
    assert names["worst case"] == N


def test_page_one_names_the_worst_slice(run):
    folder, _, _, summary = run
    report = build_report(folder / "reports", names=["fgsm"])
    rows = summary.metrics["slices"]
    worst = min(rows, key=lambda row: (row["worst_case_accuracy"], row["clean_accuracy"]))
    (line,) = [finding.text for finding in report.front.findings if "worst slice" in finding.text]
    assert f"{worst['column']} = {worst['value']}" in line
    assert "3 slices at once" in line


def test_intervals_of_many_slices_that_are_alike_miss_the_truth_in_at_most_5_percent_of_runs():
    generator = torch.Generator().manual_seed(0)
    names = [("s", str(i)) for i in range(20)]
    members = torch.eye(20, dtype=torch.bool).repeat_interleave(30, dim=1)
    drawn = torch.ones(600, dtype=torch.bool)
    misses = 0
    for _ in range(100):
        states = torch.where(torch.rand(600, generator=generator) < 0.7, 3, 1)
        rows = slice_metrics(names, members, states, drawn, examined=False)["slices"]
        misses += any(not r["worst_case_accuracy_ci_low"] <= 0.7 <= r["worst_case_accuracy_ci_high"] for r in rows)
    assert misses <= 11  # 5 expected at most; above 11 is less than 1 % of chance


BAD = {
    "": "it has to be sample,column,value",
    "name,camera\n": "it has to be sample,column,value",
    "sample,column,value\n": "has no lines",
    "sample,column,value\na,camera\n": "line 2: needs sample,column,value",
    "sample,column,value\na,camera,\n": "line 2: needs",
    "sample,column,value\na,camera,A\na,camera,B\n": "a has two values of camera, A and B",
    "sample,column,value\na,camera,A\nx,camera,B\n": "names 'x', which is no sample",
    "sample,column,value\na,cam/era,A\n": "is no name of a slice",
    "sample,column,value\n" + "".join(f"a,c{i},v\n" for i in range(MOST_SLICES + 1)): "more than 500 slices",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_is_no_table_of_slices_is_one_line(text, tmp_path, linear_subject):
    path = tmp_path / "slices.csv"
    path.write_text(text)
    data = replace(linear_subject.subset(torch.arange(2)).dataset, ids=("a", "b"), metadata={"samples": {"of": 2}})
    with pytest.raises(UserError, match=BAD[text]) as error:
        read_slices(str(path), data)
    assert "\n" not in str(error.value)


def test_lines_of_samples_that_were_not_chosen_are_left_out(tmp_path, linear_subject):
    path = tmp_path / "slices.csv"
    path.write_text("\ufeffsample,column,value\nb,camera,A\nz,camera,Z\n", encoding="utf-8")
    data = replace(linear_subject.subset(torch.arange(2)).dataset, ids=("a", "b"), metadata={"samples": {"of": 9}})
    slices = read_slices(str(path), data)
    assert slices.names == (("camera", "A"),)
    assert slices.members.tolist() == [[False, True]]
    assert slice_names(str(path)) == [("camera", "A"), ("camera", "Z")]
    with pytest.raises(UserError, match="no such file"):
        read_slices(str(tmp_path / "none.csv"), data)
