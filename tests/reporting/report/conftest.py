"""A small real run to report on: 20 digits, an attack, a sweep with its figures, and the summary."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from windtunnel.assessments.attacks.figures import ImagePairVisualiser, PerturbationHeatmapVisualiser
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.clean.figures import ConfusionMatrixVisualiser, PerClassAccuracyVisualiser
from windtunnel.assessments.figures.base import draw_figures
from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.assessments.sweeps.figures import DegradationCurveVisualiser
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.evaluation.summary.security import security_curves, write_curves
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.params.entry import Budget
from windtunnel.params.results import Clean
from windtunnel.params.sweeps import SweepEntry
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html

BUDGET = Budget(norm=Norm.LINF, epsilon=0.1)


def write_run(subject, folder):
    """Clean evaluation, two sweeps (one drawn as an attack is) and the summary."""
    clean = write_artifacts(assess_clean(Clean(), subject), folder / "robustness" / "clean", subject, started=0)
    draw_figures(clean, [ConfusionMatrixVisualiser(), PerClassAccuracyVisualiser()])
    found = []
    for name, epsilons, visualisers in (
        ("fgsm", [0, 0.1], [DegradationCurveVisualiser()]),
        ("pair", [0, 0.05, 0.1], [ImagePairVisualiser(), PerturbationHeatmapVisualiser()]),
    ):
        result = sweep(name, SweepEntry(epsilons=epsilons), BUDGET, subject)
        found.append(write_artifacts(result, folder / "robustness" / name, subject, started=0))
        draw_figures(found[-1], visualisers)
    summary = summarise(subject, PerturbationBudget(Norm.LINF, 0.1), clean, found)
    write_curves(security_curves(found), folder / "summary")
    write_artifacts(summary, folder / "summary", subject, started=0)
    return folder


@pytest.fixture(scope="session")
def original(digits_subject, tmp_path_factory):
    return write_run(digits_subject.subset(torch.arange(20)), tmp_path_factory.mktemp("reports"))


@pytest.fixture
def reports(original, tmp_path):
    return shutil.copytree(original, tmp_path / "reports")


@pytest.fixture
def named(digits_subject):
    """The subject with other names of samples and classes."""

    def make(ids, class_names):
        subject = digits_subject.subset(torch.arange(len(ids)))
        return replace(subject, dataset=replace(subject.dataset, ids=tuple(ids), class_names=tuple(class_names)))

    return make


def html_of(reports, options=None):
    render_html(build_report(reports, options), reports / "report.html")
    return (reports / "report.html").read_text()


def edit(path, change):
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def metrics_of(directory):
    return read_artifacts(directory).metrics
