"""Every figure is drawn where nothing, one, all but one and all of the samples hold: the ends of an interval are exact."""

import matplotlib.pyplot as pyplot
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import classifier_of
from windtunnel.assessments.attacks.assess import assess as attack
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.corruptions.table import DEFAULT_VISUALISERS as OF_CORRUPTIONS
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures
from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.assessments.verification.assess import assess as verify
from windtunnel.core.artifacts import write_artifacts
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.summary.sandwich_figure import SandwichVisualiser
from windtunnel.evaluation.summary.security_figure import SecurityCurvesVisualiser
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.params.outcome import Clean
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry

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


@pytest.mark.parametrize("survivors", [0, 1, N - 1, N])
def test_figures_of_what_is_left_after_attacks(survivors, tmp_path):
    subject = subject_with(survivors)
    results = {
        "fgsm": attack("fgsm", AttackEntry(library="torchattacks", algorithm="FGSM"), BUDGET, subject),
        "curve": sweep("curve", SweepEntry(epsilons=[0, 0.1]), BUDGET, subject),
        "crown": verify("crown", VerificationEntry(library="auto-LiRPA", algorithm="crown"), BUDGET, subject),
    }
    assert results["fgsm"].metrics["adversarial_accuracy"] == survivors / N
    assert results["crown"].metrics["certified_accuracy"] == survivors / N
    written = {name: write_artifacts(r, tmp_path / name, subject, started=0) for name, r in results.items()}
    for artifacts in written.values():
        kind = artifacts.metadata["assessment_kind"]
        drawn = [cls() for cls in VISUALISERS.values() if kind in cls.kinds]
        assert len(draw_figures(artifacts, drawn)) == len(drawn)
    for figure in (SecurityCurvesVisualiser(tuple(written.values())), SandwichVisualiser()):
        pyplot.close(figure.draw(written["fgsm"]))


@pytest.mark.parametrize("right", [0, 1, N - 1, N])
def test_figures_of_clean_and_corrupted_accuracy(right, tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.core.batches.CHECKPOINTS", tmp_path / "checkpoints")
    bright = torch.full((N, 1, 8, 8), 0.9)
    targets = (torch.arange(N) < right).long()
    dataset = Dataset(bright, targets, tuple(f"s{i}" for i in range(N)), ("dark", "light"))
    subject = subject_of(classifier_of(Brightness(), 2, (1, 8, 8)), dataset)
    entry = CorruptionEntry(algorithm="pixelate", severities=(1, 5), upsample=32, workers=1)
    suite = assess_suite("pixelate", entry, subject, lambda _: None)
    clean = assess_clean(Clean(), subject)
    assert suite.metrics["corrupted_accuracy"] == clean.metrics["clean_accuracy"] == right / N
    for name, result, names in (("suite", suite, OF_CORRUPTIONS), ("clean", clean, ())):
        artifacts = write_artifacts(result, tmp_path / name, subject, started=0)
        drawn = [
            cls() for n, cls in VISUALISERS.items() if n in names or (not names and cls.__module__.endswith(".clean"))
        ]
        assert len(draw_figures(artifacts, drawn)) == len(drawn) > 0
