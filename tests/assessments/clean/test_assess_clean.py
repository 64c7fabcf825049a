"""The clean evaluation: every number again from robustness_data.pt alone, and the corner cases."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from statsmodels.stats.proportion import proportion_confint
from torch import nn

from windtunnel.assessments.clean.assess import (
    adaptive_calibration_error,
    area_under_roc,
    assess_clean,
    brier_score,
    confusion_matrix,
    precision_recall_f1,
    reliability,
    write_clean_series,
)
from windtunnel.assessments.clean.figures import ConfusionMatrixVisualiser
from windtunnel.assessments.clean.subject import fresh_subject, load_subject
from windtunnel.assessments.clean.table import VISUALISERS
from windtunnel.assessments.figures.base import draw_figures, make_visualiser
from windtunnel.assessments.figures.scene import Label, Rect
from windtunnel.boundary.data.load import load_dataset, save_datasets
from windtunnel.boundary.models.load import import_model
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import AssessmentKind, Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UnsoundError, UserError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.data import Data
from windtunnel.params.model import Model, Recipe
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import read_artifacts, write_artifacts


class Fixed(nn.Module):
    """Gives logits that are written in the first row of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0]


def subject_with(logits: list[list[float]], targets: list[int], *, labelled: bool = True) -> Subject:
    values, k = torch.tensor(logits), len(logits[0])
    dataset = Dataset(
        values.view(-1, 1, 1, k), torch.tensor(targets), tuple(f"s{i}" for i in range(len(values))),
        tuple(f"c{i}" for i in range(k)), labelled, (-1e9, 1e9),
    )  # fmt: skip
    return subject_of(Classifier(Fixed(), k, (1, 1, k), frozenset(Capability), "d", "fixed"), dataset)


def test_every_metric_is_recomputed_from_the_tensors_alone(digits_subject, tmp_path):
    write_artifacts(assess_clean(Clean(calibration_bins=7), digits_subject), tmp_path, digits_subject, started=0.0)
    data = torch.load(tmp_path / "robustness_data.pt", weights_only=True)
    metrics = json.loads((tmp_path / "metadata.json").read_text())["metrics"]
    targets, logits = data["targets"].numpy(), data["clean_logits"].double().numpy()
    predictions, verdicts = data["clean_predictions"].numpy(), data["verdicts"].numpy()
    exponent = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponent / exponent.sum(1, keepdims=True)
    right = predictions == targets

    assert (predictions == logits.argmax(1)).all()
    assert set(verdicts) <= {7, 8}
    assert ((verdicts == 7) == right).all()
    assert torch.equal(data["perturbed_inputs"], data["clean_inputs"])
    assert torch.equal(data["perturbed_predictions"], data["clean_predictions"])
    assert "perturbation_distance" not in data
    low, high = proportion_confint(right.sum(), len(right), method="wilson")
    assert metrics["clean_accuracy"] == metrics["corrupted_accuracy"] == right.mean()
    assert (metrics["clean_accuracy_ci_low"], metrics["clean_accuracy_ci_high"]) == pytest.approx((low, high))
    assert (metrics["accuracy_ci_low"], metrics["accuracy_ci_high"]) == pytest.approx((low, high))
    assert (metrics["n_samples"], metrics["n_correct"]) == (len(right), right.sum())
    assert metrics["nll"] == pytest.approx(sklearn_metrics.log_loss(targets, probabilities, labels=range(10)))
    assert metrics["mean_confidence"] == pytest.approx(probabilities.max(1).mean())
    assert metrics["confusion_matrix"] == sklearn_metrics.confusion_matrix(targets, predictions).tolist()
    confidence, ece = probabilities.max(1), 0.0
    for b in range(7):
        inside = (confidence > b / 7) & (confidence <= (b + 1) / 7)
        assert metrics["reliability"]["count"][b] == inside.sum()
        if inside.any():
            ece += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert metrics["ece"] == pytest.approx(ece)
    for label, row in enumerate(metrics["per_class"]):
        mine = targets == label
        low, high = proportion_confint(right[mine].sum(), mine.sum(), method="wilson")
        assert (row["class"], row["n"], row["accuracy"]) == (str(label), mine.sum(), right[mine].mean())
        assert (row["accuracy_ci_low"], row["accuracy_ci_high"]) == pytest.approx((max(0, low), min(1, high)))


def test_the_semantics_are_those_of_sampling_without_any_perturbation(digits_subject, tmp_path):
    write_artifacts(assess_clean(Clean(), digits_subject), tmp_path, digits_subject, started=0.0)
    metadata = read_artifacts(tmp_path).metadata.model_dump(mode="json")
    assert (metadata["assessment_kind"], metadata["case"]) == ("statistical_sampling", "average_case")
    assert metadata["semantics"]["perturbation"] == {"corruption_name": "identity", "severity": 0}
    assert not metadata["semantics"]["stochastic"]


def test_calibration_of_a_case_worked_by_hand():
    """Two samples in (0.5, 1]: confidences 0.9 and 0.6, one right; one in (0, 0.5] cannot be with two classes."""
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    calibration, calibration_error = reliability(logits, torch.tensor([0, 1]), 2)
    assert calibration.count == (0, 2)
    assert calibration_error == pytest.approx(0.75 - 0.5)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 20), st.integers(0, 9999))
def test_counts_of_bins_and_cells_are_the_samples(n, k, bins, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator) * 5
    targets = torch.randint(k, (n,), generator=generator)
    calibration, calibration_error = reliability(logits, targets, bins)
    assert sum(calibration.count) == n
    assert 0 <= calibration_error <= 1
    matrix = confusion_matrix(logits.argmax(1), targets, k)
    assert int(matrix.sum()) == n
    assert int(matrix.trace()) == int((logits.argmax(1) == targets).sum())


def test_one_sample_of_one_class_has_numbers_and_figures(tmp_path):
    subject = subject_with([[0.0]], [0])
    artifacts = write_artifacts(assess_clean(Clean(), subject), tmp_path, subject, started=0.0)
    assert artifacts.metrics["clean_accuracy"] == 1.0
    assert artifacts.metrics["nll"] == 0.0
    assert artifacts.metrics["clean_accuracy_ci_low"] < 0.3
    figures = draw_figures(
        artifacts, [make_visualiser(n, AssessmentKind.STATISTICAL_SAMPLING, "clean", "clean") for n in VISUALISERS]
    )
    assert all(path.stat().st_size > 5_000 for path in figures)


def test_a_class_without_samples_has_no_accuracy(tmp_path):
    subject = subject_with([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]], [0, 0])
    artifacts = write_artifacts(assess_clean(Clean(), subject), tmp_path, subject, started=0.0)
    rows = artifacts.metrics["per_class"]
    assert [row["n"] for row in rows] == [2, 0, 0]
    assert "accuracy" not in rows[1]
    draw_figures(
        artifacts,
        [make_visualiser("PerClassAccuracyVisualiser", AssessmentKind.STATISTICAL_SAMPLING, "clean", "clean")],
    )
    write_clean_series(artifacts, subject.dataset.class_names, tmp_path)
    assert (tmp_path / "confusion.csv").read_text() == "actual,predicted\nc0,c0\nc0,c1\n"
    assert (tmp_path / "per_class_accuracy.csv").read_text() == "class,accuracy,n\nc0,0.5,2\nc1,,0\nc2,,0\n"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_gives_no_number_is_refused(bad):
    with pytest.raises(UnsoundError, match="for sample s1"):
        assess_clean(Clean(), subject_with([[1.0, 0.0], [bad, 0.0]], [0, 0]))


def test_equal_inputs_give_equal_bytes(digits_subject, tmp_path):
    for folder in ("a", "b"):
        write_artifacts(assess_clean(Clean(), digits_subject), tmp_path / folder, digits_subject, started=0.0)
    for name in ("robustness_data.pt", "metadata.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_without_labels_the_models_own_predictions_are_the_reference_and_a_caveat_says_so(tmp_path):
    subject = subject_with([[5.0, 0.0], [0.0, 5.0]], [-1, -1], labelled=False)
    artifacts = write_artifacts(assess_clean(Clean(), subject), tmp_path, subject, started=0.0)
    assert artifacts.tensor("targets").tolist() == [0, 1]
    assert artifacts.metrics["clean_accuracy"] == 1.0
    assert [caveat.code for caveat in artifacts.caveats] == ["pseudo_labels"]


# --- the subject that later stages load ---


@pytest.fixture
def workspace(tmp_path):
    """reports/data, reports/model and the clean assessment of a quickly trained model."""
    assessed, train = load_dataset(Data(samples={"n": 30}), 0)
    data, model, clean = (tmp_path / name for name in ("data", "model", "clean"))
    save_datasets(assessed, train, data)
    import_model(Model(train=Recipe(architecture="mlp", epochs=1)), train, 0, "cpu", model)
    subject = fresh_subject(data, model, "cpu", 4)
    write_artifacts(assess_clean(Clean(), subject), clean, subject, started=0.0)
    return data, model, clean


def test_later_stages_get_the_logits_that_clean_computed(workspace):
    fresh, later = fresh_subject(*workspace[:2], "cpu", 4), load_subject(*workspace, "cpu", 4)
    assert torch.equal(later.clean_logits, fresh.clean_logits)
    assert torch.equal(later.clean_predictions, fresh.clean_predictions)
    assert later.dataset.digest() == fresh.dataset.digest()
    assert later.classifier.digest == fresh.classifier.digest


def test_a_clean_assessment_of_other_samples_or_of_another_model_is_refused(workspace):
    data, model, clean = workspace
    assessed, train = load_dataset(Data(samples={"n": 30}), 1)
    import_model(Model(train=Recipe(architecture="mlp", epochs=2)), train, 0, "cpu", model)
    with pytest.raises(UserError, match=r"another model.*dvc repro"):
        load_subject(data, model, clean, "cpu", 4)
    save_datasets(assessed, train, data)
    with pytest.raises(UserError, match=r"other samples.*dvc repro"):
        load_subject(data, model, clean, "cpu", 4)


def test_an_unlabelled_run_keeps_its_reference_and_its_caveat_in_later_stages(workspace, tmp_path):
    data, model, clean = workspace
    assessed, train = load_dataset(Data(samples={"n": 30}), 0)
    save_datasets(replace(assessed, labelled=False, targets=torch.full((30,), -1)), train, data)
    subject = fresh_subject(data, model, "cpu", 4)
    write_artifacts(assess_clean(Clean(), subject), clean, subject, started=0.0)
    later = load_subject(data, model, clean, "cpu", 4)
    assert torch.equal(later.dataset.targets, later.clean_predictions)
    assert [caveat.code for caveat in later.caveats] == ["pseudo_labels"]


def test_of_a_thousand_classes_only_the_least_accurate_are_drawn(tmp_path):
    logits = torch.eye(60)
    logits[7] = torch.roll(logits[7], 1)
    subject = subject_with(logits.tolist(), list(range(60)))
    artifacts = write_artifacts(assess_clean(Clean(), subject), tmp_path, subject, started=0.0)
    visualiser = make_visualiser(
        {"PerClassAccuracyVisualiser": {"max_classes": 5}}, AssessmentKind.STATISTICAL_SAMPLING, "clean", "clean"
    )
    (scene,) = visualiser.draw(artifacts)
    words = [mark.text for mark in scene.marks if isinstance(mark, Label)]
    assert sum(isinstance(mark, Rect) for mark in scene.marks) == 5
    assert [word for word in words if word[1:].isdigit()][:2] == ["c7", "c0"]
    assert any("the 5 least accurate of 60" in word for word in words)
    (confusion,) = ConfusionMatrixVisualiser().draw(artifacts)
    assert [mark.tip for mark in confusion.marks if isinstance(mark, Rect)] == ["c7 as c8: 1"]


def test_the_confusions_of_a_thousand_classes_are_drawn_and_not_stored(tmp_path):
    labels = torch.arange(200)
    subject = subject_with(torch.eye(200)[labels.roll(-1)].tolist(), labels.tolist())
    result = assess_clean(Clean(), subject)
    assert "confusion_matrix" not in result.metrics
    artifacts = write_artifacts(result, tmp_path, subject, started=0.0)
    (confusion,) = ConfusionMatrixVisualiser().draw(artifacts)
    assert next(mark.tip for mark in confusion.marks if isinstance(mark, Rect)) == "c0 as c1: 1"


def test_brier_score_is_the_mean_squared_distance_from_the_target() -> None:
    logits = torch.tensor([[0.0, 0.0], [50.0, 0.0], [50.0, 0.0]])
    assert brier_score(logits, torch.tensor([0, 0, 1])) == pytest.approx((0.5 + 0 + 2) / 3)


def test_adaptive_calibration_error_has_bins_of_equal_size() -> None:
    """Two bins of two: confidences .6 and .6 with one right, .9 and .9 with both right."""
    chances = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1]])
    targets = torch.tensor([0, 1, 0, 0])
    assert adaptive_calibration_error(chances.log(), targets, 2) == pytest.approx((0.1 + 0.1) / 2)


def test_precision_recall_and_f1_are_those_of_the_confusion_matrix():
    generator = torch.Generator().manual_seed(0)
    predictions, targets = (torch.randint(0, 4, (300,), generator=generator) for _ in range(2))
    counts = confusion_matrix(predictions, targets, 4).double()
    hits, asked, there = counts.diag(), counts.sum(0), counts.sum(1)
    precision, recall = hits / asked, hits / there
    f1 = 2 * precision * recall / (precision + recall)
    found = precision_recall_f1(predictions, targets)
    for name, scores in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert found[f"{name}_macro"] == pytest.approx(float(scores.mean()))
        assert found[f"{name}_weighted"] == pytest.approx(float((scores * there).sum() / 300))
        assert found[f"{name}_micro"] == pytest.approx(float(hits.sum() / 300))


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    z, targets = torch.tensor([-1.0, 0.5, 0.2, 2.0, 0.2]), torch.tensor([0, 0, 1, 1, 0])
    pairs = [(a, b) for a in z[targets == 1].tolist() for b in z[targets == 0].tolist()]
    share = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    logits = torch.stack([torch.zeros(5), z], 1)
    assert area_under_roc(logits, targets) == {"auroc": pytest.approx(share)}
    assert area_under_roc(torch.zeros(2, 3), torch.tensor([0, 1])) == {}
    assert area_under_roc(logits[:2], targets[:2]) == {}
