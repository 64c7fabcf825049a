"""A suite of corruptions: it agrees with its children, with itself over processes, and after a kill."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from windtunnel.assessments.corruptions import assess as module
from windtunnel.assessments.corruptions.assess import assess_suite, write_severity_series
from windtunnel.assessments.corruptions.metrics import NEVER, Interval, SuiteData, suite_metrics
from windtunnel.assessments.corruptions.rows import SUITES
from windtunnel.core.contracts import PerturbationDistribution, Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import binomial_interval
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.runtime.placement import VARIABLE


@pytest.fixture(autouse=True)
def _own_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.runtime.batch_runner.CHECKPOINTS", tmp_path / "checkpoints")


@pytest.fixture(scope="module")
def suite(digits_subject):
    few = digits_subject.subset(torch.arange(24))
    entry = CorruptionEntry(algorithm="noise", severities=(1, 5), upsample=32)
    return few, entry, run_suite(entry, few)


def run_suite(entry, subject):
    """(suite, children)."""
    children = []
    return assess_suite("noise", entry, subject, children.append), children


def test_a_suite_has_a_child_per_corruption_and_severity_and_agrees_with_them(suite):
    subject, _, (whole, children) = suite
    assert [c.name for c in children] == [f"{n}-{s}" for n in SUITES["noise"] for s in (1, 5)]
    predictions = torch.stack([c.data["perturbed_predictions"] for c in children])
    assert torch.equal(whole.data["corruption_predictions"], predictions)
    accuracy = (predictions == subject.dataset.targets).double().mean()
    assert whole.metrics["corrupted_accuracy"] == pytest.approx(float(accuracy))
    assert whole.metrics["n_correct"] == sum(child.metrics["n_correct"] for child in children)
    for end in ("low", "high"):
        assert whole.metrics[f"accuracy_ci_{end}"] == whole.metrics[f"corrupted_accuracy_ci_{end}"]
    for child in children:
        hits = (child.data["perturbed_predictions"] == subject.dataset.targets).double().mean()
        assert child.metrics["corrupted_accuracy"] == float(hits)
        assert child.metrics["accuracy_ci_low"] <= float(hits) <= child.metrics["accuracy_ci_high"]


def test_the_minimal_severity_is_the_mildest_that_breaks(suite):
    subject, _, (whole, _) = suite
    wrong = whole.data["corruption_predictions"] != subject.dataset.targets
    severities = torch.tensor([1, 5] * 4)
    for i in range(24):
        broken = severities[wrong[:, i]]
        assert whole.data["minimal_severity"][i] == (broken.min() if len(broken) else NEVER)


def test_a_suite_declares_every_severity_it_ran_at_and_what_its_verdicts_mean(suite, tmp_path):
    subject, _, (whole, children) = suite
    read = read_artifacts(write_artifacts(whole, tmp_path / "noise", subject, started=0).directory)
    assert read.metadata.model_dump(mode="json")["semantics"]["perturbation"] == {
        "corruption_name": "noise",
        "severities": [1, 5],
    }
    assert children[0].semantics.perturbation == PerturbationDistribution("gaussian_noise", 1)
    right = (read.tensor("corruption_predictions") == read.tensor("targets")).all(0)
    verdicts = read.tensor("verdicts")
    assert torch.equal(verdicts == Verdict.CORRECT_UNDER_PERTURBATION, right)
    assert torch.equal(verdicts == Verdict.MISCLASSIFIED_UNDER_PERTURBATION, ~right)
    assert float(right.double().mean()) == read.metrics["never_broken"]
    assert (
        "under every corruption at every severity"
        in read.metadata.model_dump(mode="json")["kwargs"]["verdict_definition"]
    )


class NotIn(torch.nn.Module):
    """A model that one process may not ask."""

    def __init__(self, module, home):
        super().__init__()
        self.module, self.home = module, home

    def forward(self, x):
        assert os.getpid() != self.home
        return self.module(x)


def test_processes_give_the_same_bytes_as_one_and_ask_the_model_all_there_is_to_ask(suite, monkeypatch):
    subject, entry, (whole, _) = suite
    monkeypatch.setenv(VARIABLE, "processes:2")
    module = NotIn(subject.classifier.module, os.getpid())
    again, _ = run_suite(entry, replace(subject, classifier=replace(subject.classifier, module=module)))
    for key in ("perturbed_inputs", "corruption_predictions", "quantised_predictions", "resized_predictions"):
        assert torch.equal(again.data[key], whole.data[key])


def test_what_was_lost_at_severity_0_is_an_error_too(suite, monkeypatch):
    subject, entry, (whole, _) = suite

    def losing(results):
        for batch, part in results:
            if batch.number == 1:  # resized there and back, with nothing else
                part["predictions"][3] = module._NOTHING
            yield batch, part

    each_batch = module.each_batch
    monkeypatch.setattr(module, "each_batch", lambda *given, **named: losing(each_batch(*given, **named)))
    result, _ = run_suite(entry, subject)
    assert result.data["resized_predictions"][3] == -1
    assert (result.data["verdicts"] == Verdict.ERROR).nonzero().tolist() == [[3]]
    assert result.metrics["resized_accuracy"] <= whole.metrics["resized_accuracy"]


def test_every_number_of_a_suite_is_computed_again_from_its_file(suite, tmp_path):
    subject, entry, (whole, _) = suite
    read = read_artifacts(write_artifacts(whole, tmp_path / "noise", subject, started=0).directory)
    again = SuiteData(
        pairs=[tuple(pair) for pair in read.metadata.model_dump(mode="json")["kwargs"]["corruptions"]],
        predictions=read.tensor("corruption_predictions"),
        clean=read.tensor("clean_predictions"),
        quantised=read.tensor("quantised_predictions"),
        resized=read.tensor("resized_predictions"),
        targets=read.tensor("targets"),
        minimal=read.tensor("minimal_severity"),
    )
    assert suite_metrics(again, Interval(entry.ci_method, entry.ci_level)) == read.metrics


@pytest.mark.parametrize("method", ["clopper_pearson", "jeffreys", "agresti_coull"])
def test_intervals_of_suite_and_children_are_of_the_method_asked_for(suite, method):
    subject, entry, _ = suite
    few = subject.subset(torch.arange(8))
    asked = entry.model_copy(update={"ci_method": method, "ci_level": 0.9, "severities": (5,)})
    whole, children = run_suite(asked, few)
    for pair, child in enumerate(children):
        expected = binomial_interval(child.metrics["n_correct"], 8, 0.9, method)
        assert (child.metrics["corrupted_accuracy_ci_low"], child.metrics["corrupted_accuracy_ci_high"]) == expected
        assert whole.metrics["accuracy_by_pair_ci_low"][pair] == pytest.approx(expected[0])
    mean = whole.metrics["corrupted_accuracy"]
    expected = binomial_interval(mean * 8, 8, 0.9, method)
    assert whole.metrics["corrupted_accuracy_ci_low"] == pytest.approx(expected[0])
    assert whole.metrics["clean_accuracy_ci_low"] == binomial_interval(int(few.clean_correct.sum()), 8, 0.9, method)[0]


def test_severity_0_is_the_clean_accuracy_of_eight_bit_images(suite):
    # Digits have 17 grey levels: rounding to 256 changes them, by less than half a level.
    subject, _, (whole, _) = suite
    rounded = (subject.dataset.inputs * 255).round() / 255
    right = subject.classifier.predict(rounded) == subject.dataset.targets
    assert whole.metrics["severity_0_accuracy"] == float(right.double().mean())
    assert whole.metrics["quantisation_change"] == pytest.approx(
        whole.metrics["severity_0_accuracy"] - whole.metrics["clean_accuracy"]
    )


def test_what_upsampling_alone_changes_is_measured_and_said(suite):
    _, _, (whole, _) = suite
    (caveat,) = [c for c in whole.caveats if c.code == "upsampled"]
    assert f"{100 * whole.metrics['resizing_change']:+.1f} points" in caveat.text


class Killed(Exception):
    pass


def test_a_killed_suite_continues_where_it_stopped_with_the_same_bytes(suite, monkeypatch):
    subject, entry, (whole, _) = suite
    asked, run_job = [], module.run_job

    def counting(job):
        asked.append((job.row.algorithm.name, job.severity))
        return run_job(job)

    monkeypatch.setattr(module, "run_job", counting)
    seen = []

    def kill_at_the_third(child):
        seen.append(child.name)
        if len(seen) == 3:
            raise Killed

    with pytest.raises(Killed):
        assess_suite("noise", entry, subject, kill_at_the_third)
    finished = len(asked)
    again, children = run_suite(entry, subject)
    assert [pair for pair in asked[finished:] if pair in asked[:finished]] == []
    assert len(children) == 8
    assert torch.equal(again.data["perturbed_inputs"], whole.data["perturbed_inputs"])
    assert again.metrics == whole.metrics
    assert not list(Path(str(module.Checkpoint("x", "", 0).directory.parent)).glob("noise-*"))


def test_the_severity_curve_starts_at_severity_0(suite, tmp_path):
    subject, _, (whole, _) = suite
    written = write_artifacts(whole, tmp_path / "noise", subject, started=0)
    write_severity_series(written, tmp_path / "noise.csv")
    lines = (tmp_path / "noise.csv").read_text().splitlines()
    assert lines[0] == "severity,accuracy,ci_low,ci_high"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "5"]
    assert float(lines[1].split(",")[1]) == whole.metrics["severity_0_accuracy"]


def test_a_reference_that_is_not_there_is_refused(suite):
    subject, entry, _ = suite
    with pytest.raises(UserError, match="Did you mean 'imagenet-alexnet'"):
        run_suite(entry.model_copy(update={"reference": "imagenet-alexnt"}), subject)
