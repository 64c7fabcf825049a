"""Data and protocol that make a number worthless are named; honest data of the same size is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.gallery.case import params_of, run_in, subject_with
from tests.evaluation.sanity.tamper import changed
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.model import _unusual
from windtunnel.evaluation.sanity.run import affordable, registry, run_check
from windtunnel.evaluation.sanity.samples import copies, fine_images
from windtunnel.records.findings import FindingRecord
from windtunnel.records.regions import PerturbationBall


def dataset_of(inputs: Tensor, targets: Tensor, classes: int = 10) -> Dataset:
    ids = tuple(f"sample-{i}" for i in range(len(inputs)))
    return Dataset(inputs, targets, ids, tuple(f"class {i}" for i in range(classes)))


def digits(n: int, start: int = 0) -> Dataset:
    data = load_digits()
    rows = slice(start, start + n)
    return dataset_of(torch.tensor(data.images[rows] / 16).float()[:, None], torch.tensor(data.target[rows]).long())


def photographs(n: int, side: int = 32) -> Tensor:
    """Smooth random images in colour, with as much structure as a photograph of this size."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(n, 3, 6, 6, generator=generator)
    return nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")


def finding(
    check: str, tmp_path: Path, dataset: Dataset, train: Dataset | None = None, **changes: object
) -> FindingRecord:
    """What one check says of a run without assessments on these samples, `changes` made to its subject."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(dataset.inputs[0].numel(), dataset.num_classes)).eval()
    subject: Subject = replace(subject_with(module, dataset), **changes)
    evidence: Evidence = run_in(tmp_path, subject, params_of({"attacks": {}}), train)
    return run_check(registry()[check], evidence, evidence.params.sanity)


NOISE = torch.Generator().manual_seed(1)
COPIES = {
    "equal": lambda x: x.clone(),
    "small noise": lambda x: (x + 0.03 * torch.randn(x.shape, generator=NOISE)).clamp(0, 1),
    "a grey level more": lambda x: (x + 1 / 255).clamp(0, 1),
    "shifted by a pixel": lambda x: x.roll(1, 3),
    "mirrored": lambda x: x.flip(3),
    "shifted down and left, with noise": lambda x: (
        x.roll((1, -1), (2, 3)) + 0.01 * torch.randn(x.shape, generator=NOISE)
    ),
}


@pytest.mark.parametrize("kind", list(COPIES))
@pytest.mark.parametrize("inputs", [digits(100).inputs, photographs(100), photographs(100, 80)], ids=["8", "32", "80"])
def test_each_kind_of_copy_is_found_and_is_a_copy_of_the_right_image(kind: str, inputs: Tensor) -> None:
    found = copies(COPIES[kind](inputs[:40]), torch.arange(40), fine_images(inputs))
    assert (found == torch.arange(40)).double().mean() > 0.95
    assert (copies(inputs, torch.arange(40), fine_images(inputs[40:])) == -1).all()


def test_strong_noise_on_photographs_is_found_by_its_lack_of_structure() -> None:
    inputs = photographs(60)
    noisy = (inputs + 0.06 * torch.randn(inputs.shape, generator=NOISE)).clamp(0, 1)
    assert (copies(noisy, torch.arange(60), fine_images(inputs)) == torch.arange(60)).double().mean() > 0.9


def test_a_sample_is_compared_only_with_those_before_it_where_asked() -> None:
    images = digits(4).inputs[[0, 1, 0, 1]]
    assert copies(images, torch.arange(4), fine_images(images), earlier=True).tolist() == [-1, -1, 0, 1]


def test_honest_digits_hold_no_copies(tmp_path: Path) -> None:
    for n in (100, 200, 1000):
        assert finding("A18", tmp_path / str(n), digits(n)).status is Status.PASS
    assert finding("A20", tmp_path / "train", digits(500), digits(1000, 500)).status is Status.PASS


def test_near_copies_are_named_with_the_sample_they_copy(tmp_path: Path) -> None:
    data = digits(60)
    data = replace(data, inputs=torch.cat([data.inputs[:30], data.inputs[:30].roll(1, 2)]))
    said = finding("A18", tmp_path, data)
    assert (said.status, said.value, len(said.samples)) == (Status.WARN, 0.5, 30)
    assert "sample-30 of sample-0" in said.reason


def test_a_shifted_training_image_was_trained_on(tmp_path: Path) -> None:
    train = digits(300)
    shifted = replace(digits(60), inputs=train.inputs[:60].roll(-1, 3))
    assert finding("A20", tmp_path, shifted, train).value == 1.0


def test_a_class_left_out_of_a_small_task_is_a_warning_and_of_a_large_one_a_note(tmp_path: Path) -> None:
    data = digits(100)
    eight = data.subset((data.targets < 8).nonzero().flatten())
    said = finding("A25", tmp_path / "a", eight)
    assert (said.severity, said.value) == (Severity.WARN, 2)
    assert "class 8, class 9" in said.reason
    of_many = dataset_of(data.inputs, torch.arange(0, 1000, 10), classes=1000)
    said = finding("A25", tmp_path / "b", of_many)
    assert (said.severity, said.value) == (Severity.INFO, 900)
    ten_of_many = dataset_of(data.inputs, data.targets, classes=1000)
    assert finding("A25", tmp_path / "d", ten_of_many).severity is Severity.WARN
    assert finding("A25", tmp_path / "c", data).status is Status.PASS


def fitted_to_digits() -> nn.Module:
    """A linear model fitted to 900 digits by ridge regression."""
    train = digits(900, 200)
    inputs = torch.cat([train.inputs.flatten(1), torch.ones(900, 1)], 1)
    answers = nn.functional.one_hot(train.targets, 10).float()
    weights = torch.linalg.solve(inputs.T @ inputs + 0.1 * torch.eye(65), inputs.T @ answers)
    layer = nn.Linear(64, 10)
    with torch.no_grad():
        layer.weight.copy_(weights[:-1].T)
        layer.bias.copy_(weights[-1])
    return nn.Sequential(nn.Flatten(), layer)


SWAPPED = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 8])
AS_TRAINED = {
    "two classes swapped": (lambda data: replace(data, targets=SWAPPED[data.targets]), "another order (8 is 9, 9 is 8"),
    "labels from 1": (lambda data: replace(data, targets=(data.targets + 1) % 10), "labels"),
    "black for white": (lambda data: replace(data, inputs=1 - data.inputs), "black and white changed places"),
    "transposed": (lambda data: replace(data, inputs=data.inputs.transpose(2, 3)), "rows and columns changed places"),
}


@pytest.mark.parametrize("mistake", AS_TRAINED)
def test_labels_and_inputs_of_another_convention_are_a_warning(tmp_path: Path, mistake: str) -> None:
    change, words = AS_TRAINED[mistake]
    subject = subject_with(fitted_to_digits(), change(digits(200)))
    evidence = run_in(tmp_path, subject, params_of({"attacks": {}}))
    said = run_check(registry()["A8"], evidence, evidence.params.sanity)
    assert (said.status, said.severity) == (Status.WARN, Severity.WARN)
    assert words in said.reason


def test_digits_as_in_training_are_no_other_convention(tmp_path: Path) -> None:
    subject = subject_with(fitted_to_digits(), digits(200))
    evidence = run_in(tmp_path, subject, params_of({"attacks": {}}))
    assert run_check(registry()["A8"], evidence, evidence.params.sanity).status is Status.PASS


def test_a_class_answered_by_a_constant_is_named(tmp_path: Path) -> None:
    data = digits(100)
    logits = torch.randn(100, 10, generator=torch.Generator().manual_seed(0))
    logits[torch.arange(100), data.targets] += 9
    logits[data.targets == 3] = torch.arange(10.0) * torch.tensor([0, 0, 0, 5, 0, 0, 0, 0, 0, 0])
    said = finding("A25", tmp_path / "a", data, clean_logits=logits, clean_predictions=logits.argmax(1))
    assert (said.severity, len(said.samples)) == (Severity.WARN, int((data.targets == 3).sum()))
    hard = 5 * nn.functional.one_hot(data.targets, 10).float()
    said = finding("A25", tmp_path / "b", data, clean_logits=hard, clean_predictions=hard.argmax(1))
    assert said.severity is Severity.INFO


def test_the_zero_logit_of_a_binary_head_is_no_constant_class(tmp_path: Path) -> None:
    data = digits(100)
    data = dataset_of(data.inputs, (data.targets >= 5).long(), classes=2)
    z = torch.randn(100, generator=torch.Generator().manual_seed(0)) + 9 * (2 * data.targets - 1)
    for name, k in (("binary", 2), ("three", 3)):
        logits = torch.stack([torch.zeros(100), z, -z][:k], 1)
        answers = {"clean_logits": logits, "clean_predictions": logits.argmax(1)}
        said = finding("A25", tmp_path / name, data, **answers)
        assert ("is the same for every sample" in said.reason) is (k == 3)


def logits_with_margins(targets: Tensor, margins: Tensor) -> dict[str, Tensor]:
    """Logits whose margins are these; an own class of margin m beside zeros."""
    logits = nn.functional.one_hot(targets, 10) * margins[:, None]
    return {"clean_logits": logits, "clean_predictions": targets}


def test_all_right_is_a_note_and_a_distribution_cut_at_zero_a_warning(tmp_path: Path) -> None:
    data, draws = digits(80), torch.randn(20_000, generator=torch.Generator().manual_seed(2))
    for name, mean, wanted in (("good", 4.0, Severity.INFO), ("selected", 0.5, Severity.WARN)):
        margins = draws + mean
        said = finding("A10", tmp_path / name, data, **logits_with_margins(data.targets, margins[margins > 0][:80]))
        assert (said.status, said.severity) == (Status.WARN, wanted)
        assert "selected by correctness or labelled by the model" in said.reason


def test_fifty_right_samples_are_no_sign(tmp_path: Path) -> None:
    data = digits(50)
    assert (
        finding("A10", tmp_path, data, **logits_with_margins(data.targets, torch.full((50,), 3.0))).status
        is Status.PASS
    )


@pytest.mark.parametrize(
    ("norm", "epsilon", "shape", "usual"),
    [
        (Norm.L2, 0.2, (1, 28, 28), False), (Norm.L2, 1.5, (1, 28, 28), True), (Norm.L2, 0.5, (1, 8, 8), True),
        (Norm.LINF, 8 / 255, (3, 32, 32), True), (Norm.LINF, 8 / 255 / 255, (3, 32, 32), False),
        (Norm.LINF, 4 / 255, (3, 224, 224), True), (Norm.L2, 3.0, (3, 224, 224), True), (Norm.L2, 0.01, (3, 32, 32), False),
        (Norm.LINF, 0.3, (1, 28, 28), True), (Norm.L1, 12.0, (3, 32, 32), True), (Norm.L1, 0.5, (3, 32, 32), False),
        (Norm.L0, 1.0, (3, 32, 32), True),
    ],
)  # fmt: skip
def test_an_epsilon_far_from_those_in_use_is_named(norm: Norm, epsilon: float, shape: tuple, usual: bool) -> None:
    data = dataset_of(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64))
    assert (_unusual(PerturbationBall(norm, epsilon), data) == "") is usual


@pytest.mark.slow
def test_the_suite_common_at_one_severity_is_named(evidence: Evidence) -> None:
    def one_severity(metadata: dict) -> None:
        metadata["algorithm"] = "common"
        for pair in metadata["kwargs"]["corruptions"]:
            pair[1] = 1

    for metadata, wanted in ((one_severity, Status.WARN), (lambda m: m.update(algorithm="common"), Status.PASS)):
        suite = changed(evidence, "noise", metadata=metadata)
        said = run_check(registry()["E10"], suite, suite.params.sanity)
        assert said.status is wanted
        assert wanted is Status.PASS or "at one severity instead of five: noise" in said.reason


def test_few_queries_are_spent_on_samples_of_every_class():
    data = digits(200)
    by_class = data.subset(data.targets.argsort(stable=True))
    few = affordable(by_class, 150)
    assert 10 <= len(few) < 40
    assert set(few.targets.tolist()) == set(range(10))
    assert affordable(by_class, None).ids == by_class.ids
