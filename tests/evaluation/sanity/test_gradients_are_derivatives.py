"""C24: what is no derivative is found at any size of image, and honest networks that are not smooth are left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.gallery import masks
from benchmarks.gallery.case import NAIVE, params_of, run_in, subject_with
from tests.evaluation.sanity.tamper import noisy, quantised, with_model
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import registry, run_check
from windtunnel.evaluation.witness.search import train_student
from windtunnel.records.findings import FindingRecord

pytestmark = pytest.mark.slow


def look(evidence: Evidence) -> FindingRecord:
    return run_check(registry()["C24"], evidence, evidence.params.sanity)


def around(evidence: Evidence, change: Callable[[nn.Module], nn.Module]) -> FindingRecord:
    return look(with_model(evidence, change(evidence.subject.classifier.module)))


def test_a_gradient_that_points_down_is_hard_and_one_of_another_function_warns(evidence: Evidence) -> None:
    down = around(evidence, masks.wrong_sign)
    assert (down.status, down.severity, down.value) == (Status.FAIL, Severity.HARD, 1.0)
    assert "it falls where the gradient says that it rises" in down.reason
    other = around(evidence, masks.shattered)
    assert (other.status, other.severity) == (Status.WARN, Severity.WARN)


def test_what_it_cannot_tell_is_said(evidence: Evidence) -> None:
    random = look(with_model(evidence, noisy(evidence.subject.classifier.module)))
    flat = look(with_model(evidence, quantised(evidence.subject.classifier.module)))
    assert (random.status, flat.status) == (Status.NOT_APPLICABLE, Status.NOT_APPLICABLE)
    assert "random" in random.reason
    assert "(C1)" in flat.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_large_images_on_an_even_ground(wrong: bool, tmp_path: Path) -> None:
    """Pools of equal values and units that are just off have one-sided derivatives: an honest network has many of them."""
    torch.manual_seed(0)
    inputs = torch.zeros(30, 1, 28, 28)
    inputs[:, :, 8:20, 8:20] = torch.rand(30, 1, 12, 12).round()
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 10),
    ).eval()  # fmt: skip
    module = masks.wrong_sign(net) if wrong else net
    data = Dataset(inputs, net(inputs).argmax(1), tuple(map(str, range(30))), tuple("abcdefghij"))
    found = look(run_in(tmp_path, subject_with(module, data), params_of({"attacks": NAIVE})))
    assert found.status is (Status.FAIL if wrong else Status.PASS), found.reason


def test_a_tenth_of_a_grey_level_of_budget_is_enough(mlp_subject: Subject, tmp_path: Path) -> None:
    run = {"budget": {"norm": "Linf", "epsilon": 0.0004}, "attacks": {"fgsm": NAIVE["fgsm"]}}
    evidence = run_in(tmp_path, mlp_subject.subset(torch.arange(30)), params_of(run))
    assert look(evidence).status is Status.PASS


def test_the_witness_s_student_learns_without_importing_a_compiler() -> None:
    """Torch's first optimiser object imports its compiler: twice as long as the whole check."""
    code = (
        "import sys, torch; from torch import nn; from windtunnel.evaluation.witness.search import _teach\n"
        "_teach(nn.Linear(4, 2), torch.rand(200, 4), torch.arange(200) % 2, torch.Generator().manual_seed(0))\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_student_answers_as_the_model(evidence: Evidence) -> None:
    subject = evidence.subject
    inputs, predictions = subject.dataset.inputs, subject.clean_predictions
    student = train_student(inputs, predictions, subject.dataset, subject.classifier.device, 0, 0.1)
    assert float((student.predict(inputs) == predictions).double().mean()) > 0.9
