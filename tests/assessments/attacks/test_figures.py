"""The figures of attacks: what they draw, and that a signed map keeps the sign."""

import shutil
from pathlib import Path

import pytest
import torch

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.figures import (
    ImagePairVisualiser,
    PerturbationHeatmapVisualiser,
    SquarePlacesVisualiser,
    shown_samples,
)
from windtunnel.assessments.figures.base import NothingToDraw, draw_figures, make_visualiser
from windtunnel.assessments.figures.pictures import PictureGrid, signed_map
from windtunnel.core.contracts import AssessmentKind, Norm
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject
from windtunnel.core.transformed import inside_square
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import write_artifacts


def test_signed_map_keeps_the_sign_of_the_channel_that_moved_most() -> None:
    change = torch.tensor([[[0.1, -0.5]], [[-0.3, 0.2]], [[0.2, 0.4]]])
    assert signed_map(change).tolist() == [pytest.approx([-0.3, -0.5])]
    assert signed_map(change, "max_abs").tolist() == [pytest.approx([0.3, 0.5])]
    assert signed_map(change, "mean_abs").tolist() == [pytest.approx([0.2, 1.1 / 3])]


def test_figures_are_written_twice_alike(digits_subject: Subject, tmp_path: Path) -> None:
    entry = AttackEntry(library="torchattacks", algorithm="FGSM")
    result = assess("it", entry, Budget(norm=Norm.LINF, epsilon=0.1), digits_subject)
    drawn = []
    for name in "ab":
        artifacts = write_artifacts(result, tmp_path / name, digits_subject, started=0.0)
        figures = [
            ImagePairVisualiser(),
            ImagePairVisualiser(include_clean_input=False, include_perturbation_map=False),
            PerturbationHeatmapVisualiser(max_samples=2),
        ]
        drawn.append([path.read_bytes() for path in draw_figures(artifacts, figures)])
    assert drawn[0] == drawn[1]
    first = shown_samples(artifacts, 4)
    assert (artifacts.tensor("verdicts")[first] == 1).all()
    assert artifacts.tensor("attacked")[first].all()


def test_places_of_patches_are_drawn_where_they_broke_samples(digits_subject: Subject, tmp_path: Path) -> None:
    block = {"library": "transformations", "algorithm": "gradient", "params": {"restarts": 1, "steps": 5, "places": 8}}
    entry = AttackEntry.model_validate({**block, "budget": {"patch": 3}})
    assert "SquarePlacesVisualiser" in entry.visualisers_by_default(())
    subject = digits_subject.subset(digits_subject.clean_correct.nonzero().flatten()[:20])
    result = assess("it", entry, Budget(norm=Norm.LINF, epsilon=0.1), subject)
    artifacts = write_artifacts(result, tmp_path / "it", subject, started=0.0)
    (grid,) = SquarePlacesVisualiser().draw(artifacts)
    assert isinstance(grid, PictureGrid)
    broken = artifacts.tensor("verdicts") == 1
    assert len(grid.header) == 1 + min(7, int(broken.sum()))
    assert f"share of {len(broken)} attacked samples" in grid.caption
    table = artifacts.tensors("transformation_parameters")
    squares = torch.stack(list(table.values()), 1)[broken]
    most = float(inside_square(squares, 8, 8).double().sum(0).max()) / len(broken)
    assert f"to {most:.1%} (bright)" in grid.caption
    shutil.rmtree(tmp_path / "it")

    rotation = AttackEntry.model_validate(
        {"library": "transformations", "algorithm": "grid", "budget": {"rotation": 5}}
    )
    assert rotation.visualisers_by_default(()) == ()
    turned = write_artifacts(
        assess("it", rotation, Budget(norm=Norm.LINF, epsilon=0.1), subject), tmp_path / "it", subject, started=0.0
    )
    with pytest.raises(NothingToDraw, match="no square"):
        SquarePlacesVisualiser().draw(turned)


def test_an_aggregation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="aggregate_channels"):
        make_visualiser(
            {"PerturbationHeatmapVisualiser": {"aggregate_channels": "median"}},
            AssessmentKind.EMPIRICAL_ATTACK,
            "attacks",
            "attacks.it",
        )
