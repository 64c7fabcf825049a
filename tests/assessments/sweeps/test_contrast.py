"""Two sweeps on the same samples."""

import pytest
import torch

from windtunnel.assessments.sweeps.assess import assess
from windtunnel.core.artifacts import read_artifacts, write_artifacts
from windtunnel.core.errors import UserError
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.reporting.compare.contrast import contrast, contrast_figure

ENTRY = SweepEntry(epsilons=[0, 0.05, 0.1, 0.2])


@pytest.fixture(scope="module")
def swept(digits_subject, robust_subject, tmp_path_factory):
    """Directories of a standard model, of a robust one, and of the standard one on other samples and over another menu."""
    folder = tmp_path_factory.mktemp("sweeps")
    few = torch.arange(60)
    cases = {
        "standard": (digits_subject.subset(few), ENTRY),
        "robust": (robust_subject.subset(few), ENTRY),
        "others": (digits_subject.subset(few + 60), ENTRY),
        "menu": (digits_subject.subset(few), SweepEntry(epsilons=[0, 0.1])),
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
    assert contrast_figure(found, ("standard", "robust")).axes


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


@pytest.mark.parametrize(("other", "says"), [("others", "other samples"), ("menu", "another menu")])
def test_what_cannot_be_paired_is_refused(swept, other, says):
    with pytest.raises(UserError, match=says):
        contrast(swept / "standard", swept / other)
