"""Two sweeps on the same samples."""

import pytest
import torch
from sklearn.datasets import make_blobs

from tests.conftest import classifier_of
from windtunnel.assessments.sweeps.assess import assess
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.subject import subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.model import Recipe
from windtunnel.params.sweeps import SweepEntry
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.reporting.compare.contrast import contrast, contrast_chart

ENTRY = SweepEntry(epsilons=[0, 0.05, 0.1, 0.2])


@pytest.fixture(scope="module")
def swept(digits_subject, robust_subject, tmp_path_factory):
    """Directories of a standard model, of a robust one, and of the standard one on other samples and over another epsilon grid."""
    folder = tmp_path_factory.mktemp("sweeps")
    few = torch.arange(60)
    cases = {
        "standard": (digits_subject.subset(few), ENTRY),
        "robust": (robust_subject.subset(few), ENTRY),
        "others": (digits_subject.subset(few + 60), ENTRY),
        "grid": (digits_subject.subset(few), SweepEntry(epsilons=[0, 0.1])),
    }
    for name, (subject, entry) in cases.items():
        write_artifacts(assess(name, entry, Budget(epsilon=0.1), subject), folder / name, subject, started=0)
    return folder


def test_the_curve_of_a_robust_model_falls_more_slowly(swept):
    found = contrast(swept / "standard", swept / "robust")
    overall = found.curves.overall
    assert overall.low > 0
    assert overall.second - overall.first > 0.03
    assert found.later > found.earlier
    chart = contrast_chart(found, ("standard", "robust"))
    assert f"robust flips later on {found.later} samples" in chart.alt


@pytest.fixture(scope="module")
def blobs():
    """Areas under the curve of 20 Gaussian features in units of their own, by training recipe: docs/benchmarks/sweeps.md has the table."""
    features, labels = make_blobs(1200, 20, centers=4, cluster_std=2.0, center_box=(-3, 3), random_state=0)
    x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
    names, span = tuple("abcd"), (float(x.min()), float(x.max()))
    train, test = (
        Dataset(x[rows], y[rows], tuple(map(str, range(len(x[rows])))), names, value_range=span)
        for rows in (slice(0, 800), slice(800, 1200))
    )
    found = {}
    for recipe in ("standard", "noise", "adversarial"):
        made = Recipe(architecture="mlp", recipe=recipe, epochs=10, noise_sigma=0.6, epsilon=0.6)
        subject = subject_of(classifier_of(train_classifier(made, train, 0, torch.device("cpu")), 4, (20,)), test)
        grid = SweepEntry(epsilons=[0, 0.2, 0.4, 0.6, 0.8, 1, 1.5, 2])
        found[recipe] = assess("blobs", grid, Budget(epsilon=0.6), subject).metrics
    return found


def test_on_blobs_adversarial_training_flattens_the_curve_and_noise_does_not(blobs):
    area = {recipe: metrics["area_under_curve"] for recipe, metrics in blobs.items()}
    assert area["adversarial"] > blobs["standard"]["area_under_curve_ci_high"]
    assert abs(area["noise"] - area["standard"]) < 0.02


def test_epsilon_is_in_the_units_of_the_features(blobs):
    """An epsilon of 1 is 1: half of what moves a sample of one blob to the next, not a hundredth of a pixel's range."""
    at = [round(epsilon, 6) for epsilon in blobs["standard"]["epsilons"]]
    curve = dict(zip(at, blobs["standard"]["accuracy_curve"], strict=True))
    assert curve[0] > 0.95
    assert curve[0.2] > 0.85
    assert curve[2] < 0.2


def test_the_areas_are_those_of_the_two_sweeps(swept):
    overall = contrast(swept / "standard", swept / "robust").curves.overall
    for name, area in (("standard", overall.first), ("robust", overall.second)):
        assert area == pytest.approx(read_artifacts(swept / name).metrics["area_under_curve"])


def test_a_contrast_the_other_way_round_swaps_later_and_earlier(swept):
    there, back = (contrast(swept / a, swept / b) for a, b in (("standard", "robust"), ("robust", "standard")))
    assert (back.later, back.earlier) == (there.earlier, there.later)


def test_a_sweep_against_itself_differs_in_nothing(swept):
    found = contrast(swept / "standard", swept / "standard")
    assert (found.curves.overall.low, found.curves.overall.high, found.later, found.earlier) == (0, 0, 0, 0)


@pytest.mark.parametrize(("other", "says"), [("others", "other samples"), ("grid", "another epsilon grid")])
def test_what_cannot_be_paired_is_refused(swept, other, says):
    with pytest.raises(UserError, match=says):
        contrast(swept / "standard", swept / other)
