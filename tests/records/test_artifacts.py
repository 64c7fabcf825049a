import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, PerturbationBudget, Semantics
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.errors import UserError
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.summary.summarise import SUMMARY
from windtunnel.records.artifacts import (
    base_data,
    base_kwargs,
    load_tensors,
    read_artifacts,
    save_tensors,
    write_artifacts,
)
from windtunnel.records.files import file_digest
from windtunnel.records.metadata import FigureRecord
from windtunnel.records.result import AssessmentResult


@pytest.fixture
def subject():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    classifier = Classifier(module, 3, (1, 2, 2), frozenset({Capability.FORWARD}), "digest", "test")
    inputs = torch.rand(5, 1, 2, 2)
    return subject_of(classifier, Dataset(inputs, torch.tensor([0, 1, 2, 0, 1]), tuple("abcde"), ("x", "y", "z")))


def result_of(subject, **metrics):
    return AssessmentResult(
        "made",
        Semantics(SUMMARY, PerturbationBudget(SUMMARY.norm, 0.1)),
        base_data(subject, torch.full((5,), 2)),
        {"clean_accuracy": 0.5, **metrics},
        kwargs=base_kwargs(subject),
    )


def test_what_is_written_is_what_is_read(subject, tmp_path):
    written = write_artifacts(result_of(subject), tmp_path / "made", subject, started=time.time())
    read = read_artifacts(tmp_path / "made")
    assert read.metadata == written.metadata
    assert torch.equal(read.tensor("clean_inputs"), subject.dataset.inputs)
    assert read.sample_names == list("abcde")


def test_two_writes_of_one_result_are_equal_bytes_although_time_passes(subject, tmp_path):
    for name in ("one", "two"):
        write_artifacts(result_of(subject), tmp_path / name, subject, started=time.time() - len(name))
    for file in ("robustness_data.pt", "metadata.json"):
        assert file_digest(tmp_path / "one" / file) == file_digest(tmp_path / "two" / file)


def test_metadata_is_written_once_and_last_with_the_figures_that_were_drawn(subject, tmp_path):
    seen = []

    def draw(artifacts):
        seen.extend(path.name for path in artifacts.directory.iterdir())
        return [FigureRecord(name="Picture", file="Picture_0.png", scope="assessor")]

    written = write_artifacts(result_of(subject), tmp_path, subject, started=0, draw=draw)
    assert seen == ["robustness_data.pt"]
    assert [figure.name for figure in written.metadata.visualisers] == ["Picture"]
    assert read_artifacts(tmp_path).metadata == written.metadata


def test_a_view_is_saved_without_the_storage_it_looks_into(tmp_path):
    large = torch.zeros(100_000)
    save_tensors({"clean_inputs": large[:3]}, tmp_path / "robustness_data.pt")
    assert (tmp_path / "robustness_data.pt").stat().st_size < 10_000
    assert len(load_tensors(tmp_path / "robustness_data.pt")["clean_inputs"]) == 3


def test_a_damaged_file_is_one_clear_line(subject, tmp_path):
    write_artifacts(result_of(subject), tmp_path / "made", subject, started=0)
    (tmp_path / "made" / "robustness_data.pt").write_bytes(b"not a tensor")
    with pytest.raises(UserError, match=r"robustness_data.pt: cannot be read"):
        read_artifacts(tmp_path / "made")


def test_missing_rows_are_refused_before_anything_is_written(subject, tmp_path):
    result = result_of(subject)
    result.data["verdicts"] = torch.ones(4, dtype=torch.int64)
    with pytest.raises(UserError, match="verdicts of 4 samples for 5 samples"):
        write_artifacts(result, tmp_path / "made", subject, started=0)
    assert not (tmp_path / "made").exists()


def test_metadata_say_how_the_samples_were_chosen_by_the_data_stage_and_by_the_entry(subject, tmp_path):
    of_source = {"of": 100, "n": 5, "selection": "stratified", "seed": 0}
    metadata = {"source": "made", "samples": of_source}
    whole = replace(subject, dataset=replace(subject.dataset, metadata=metadata))
    for chosen, expected in (
        (whole, of_source),
        (whole.choose(5, "first", 0), of_source),
        (whole.choose(3, "first", 0), {**of_source, "then": {"of": 5, "n": 3, "selection": "first"}}),
        (whole.choose(3, "random", 7), {**of_source, "then": {"of": 5, "n": 3, "selection": "random", "seed": 7}}),
    ):
        result = replace(result_of(chosen), data=base_data(chosen, torch.full((len(chosen.dataset),), 2)))
        semantics = write_artifacts(result, tmp_path / "it", chosen, started=0).metadata.model_dump(mode="json")[
            "semantics"
        ]
        assert semantics["sample_selection"] == expected
        assert semantics["input_metadata"] == metadata


@pytest.mark.parametrize("how", ["first", "random", "stratified"])
def test_selection_is_sorted_unique_and_of_the_asked_size(how):
    targets = torch.tensor([0] * 50 + [1] * 5 + [2] * 45)
    chosen = select(100, 15, how, 3, targets)
    assert len(chosen.unique()) == 15
    assert torch.equal(chosen, chosen.sort().values)
    if how == "stratified":
        assert targets[chosen].bincount().tolist() == [5, 5, 5]


def test_without_labels_the_models_own_predictions_are_the_reference(subject):
    unlabelled = replace(subject.dataset, labelled=False, targets=torch.full((5,), -1))
    found = subject_of(subject.classifier, unlabelled)
    assert found.clean_correct.all()
    assert [c.code for c in found.caveats] == ["pseudo_labels"]
