"""Every figure is drawn where nothing, one, all but one and all of the samples hold: the ends of an interval are exact."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import classifier_of
from windtunnel.assessments.attacks.assess import assess as attack
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures, drawn
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.assessments.verification.assess import assess as verify
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.summary.sandwich_figure import SandwichVisualiser
from windtunnel.evaluation.summary.security import security_curves, write_curves
from windtunnel.evaluation.summary.security_figure import SecurityCurvesVisualiser
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.params.results import Clean
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.artifacts import Artifacts, write_artifacts
from windtunnel.records.files import RUNTIME_FILE, file_digest
from windtunnel.records.result import AssessmentResult

pytestmark = pytest.mark.slow
register_figures()
N = 200
BUDGET = Budget(epsilon=0.1)


class Brightness(nn.Module):
    """Two classes, told apart by whether the mean of the pixels is above one half; `away` from there changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
        weight = torch.full((64,), 1 / 64)
        self.layers[1].weight.data = torch.stack([-weight, weight])
        self.layers[1].bias.data = torch.tensor([0.5, -0.5])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def subject_with(survivors: int) -> Subject:
    """All right without perturbation; within Linf 0.1 all but `survivors` can be brought over the boundary."""
    away = torch.where(torch.arange(N) < survivors, 0.3, 0.05)
    inputs = (0.5 + away)[:, None, None, None].expand(N, 1, 8, 8).clone()
    dataset = Dataset(inputs, torch.ones(N, dtype=torch.int64), tuple(f"s{i}" for i in range(N)), ("dark", "light"))
    return subject_of(classifier_of(Brightness(), 2, (1, 8, 8)), dataset)


def attacked(subject: Subject, folder: Path) -> dict[str, Artifacts]:
    """An attack, a sweep and a proof, written with every figure of their kind."""
    results = {
        "fgsm": attack("fgsm", AttackEntry(library="torchattacks", algorithm="FGSM"), BUDGET, subject),
        "curve": sweep("curve", SweepEntry(epsilons=[0, 0.1]), BUDGET, subject),
        "crown": verify("crown", VerificationEntry(library="auto-LiRPA", algorithm="crown"), BUDGET, subject),
    }
    written = {name: write_artifacts(r, folder / name, subject, started=0) for name, r in results.items()}
    for artifacts in written.values():
        kind = artifacts.kind
        figures = [
            cls() for name, cls in sorted(VISUALISERS.items()) if kind in cls.kinds and "summary" not in cls.families
        ]
        assert len(draw_figures(artifacts, figures)) == len(figures)
    return written


def corrupted(right: int, folder: Path) -> tuple[AssessmentResult, AssessmentResult]:
    """(clean, a suite) of a model that is right on `right` samples under every corruption; written with their figures."""
    bright = torch.full((N, 1, 8, 8), 0.9)
    targets = (torch.arange(N) < right).long()
    dataset = Dataset(bright, targets, tuple(f"s{i}" for i in range(N)), ("dark", "light"))
    subject = subject_of(classifier_of(Brightness(), 2, (1, 8, 8)), dataset)
    entry = CorruptionEntry(corruptions=("pixelate", "jpeg_compression", "saturate"), severities=(1, 5), upsample=32)
    suite = assess_suite("suite", entry, subject, lambda _: None)
    clean = assess_clean(Clean(), subject)
    for result, module in ((suite, ".corruptions.figures"), (clean, ".clean.figures")):
        artifacts = write_artifacts(result, folder / result.name, subject, started=0)
        figures = [cls() for name, cls in sorted(VISUALISERS.items()) if cls.__module__.endswith(module)]
        assert len(draw_figures(artifacts, figures)) == len(figures) > 0
    return clean, suite


@pytest.mark.parametrize("survivors", [0, 1, N - 1, N])
def test_figures_of_what_is_left_after_attacks(survivors, tmp_path):
    written = attacked(subject_with(survivors), tmp_path)
    assert written["fgsm"].metrics["adversarial_accuracy"] == survivors / N
    assert written["crown"].metrics["certified_accuracy"] == survivors / N
    write_curves(security_curves([*written.values()]), written["fgsm"].directory)
    for figure in (SecurityCurvesVisualiser(), SandwichVisualiser()):
        drawn(figure, written["fgsm"])


@pytest.mark.parametrize("right", [0, 1, N - 1, N])
def test_figures_of_clean_and_corrupted_accuracy(right, tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.runtime.batch_runner.CHECKPOINTS", tmp_path / "checkpoints")
    clean, suite = corrupted(right, tmp_path)
    assert suite.metrics["corrupted_accuracy"] == clean.metrics["clean_accuracy"] == right / N


ONE_RUN = """
from pathlib import Path
from tests.assessments.figures.test_extremes import attacked, corrupted, subject_with
attacked(subject_with(100), Path("."))
corrupted(100, Path("."))
"""


def test_two_processes_that_hash_differently_write_equal_bytes(tmp_path):
    """Three corruptions tie, so that whatever is sorted in the order of a set differs between the two."""
    found = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", ONE_RUN], cwd=folder, env=environment, check=True)
        left_out = {".cache", RUNTIME_FILE}
        files = [p for p in folder.rglob("*") if p.is_file() and not left_out & set(p.parts)]
        found.append({str(p.relative_to(folder)): file_digest(p) for p in files})
    assert len(found[0]) > 20
    assert found[0] == found[1]
