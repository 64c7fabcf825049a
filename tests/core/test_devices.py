"""Accelerators: what needs one is marked `gpu` and skipped where there is none."""

import pytest
import torch

from windtunnel.assessments.attacks.assess import assess
from windtunnel.core.seeds import make_deterministic
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

BUDGET = Budget(norm="Linf", epsilon=0.1)
PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 5, "step_size": 0.03}}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def flags_restored(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = cudnn


def test_cuda_is_held_to_deterministic_algorithms_and_full_float32(flags_restored, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    make_deterministic(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    make_deterministic(torch.device("cuda"))
    import os

    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32


def test_a_search_in_bfloat16_is_evaluated_in_float32(digits_subject: Subject):
    subject = digits_subject.subset(torch.arange(30))
    found = assess("pgd", AttackEntry.model_validate({**PGD, "search_precision": "bfloat16"}), BUDGET, subject)
    whole = assess("pgd", AttackEntry.model_validate(PGD), BUDGET, subject)
    images = found.data["perturbed_inputs"]
    assert not torch.equal(images, whole.data["perturbed_inputs"])  # the search was another
    assert torch.equal(found.data["perturbed_predictions"], subject.classifier.predict(images))
    assert torch.equal(found.data["clean_logits"], whole.data["clean_logits"])
    assert found.kwargs["search_precision"] == "bfloat16"
    assert "search_precision" not in whole.kwargs
    assert abs(found.metrics["adversarial_accuracy"] - whole.metrics["adversarial_accuracy"]) <= 0.2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_attack_on_an_accelerator_gives_equal_bytes_twice(digits_subject: Subject, precision, flags_restored):
    if not torch.accelerator.is_available():
        pytest.skip("no accelerator is here")
    from dataclasses import replace

    from windtunnel.boundary.models.load import pick_device

    device = pick_device("auto")
    classifier = replace(digits_subject.classifier, device=device)
    try:
        classifier.module.to(device)
        subject = replace(digits_subject, classifier=classifier)
        entry = AttackEntry.model_validate({**PGD, "search_precision": precision})
        one, two = (assess("pgd", entry, BUDGET, subject).data["perturbed_inputs"] for _ in range(2))
    finally:
        classifier.module.cpu()
    assert torch.equal(one, two)
