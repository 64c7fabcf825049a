"""Figures, MLflow series and the sandwich of query-counted attacks."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.figures.base import NothingToDraw, draw_figures
from windtunnel.assessments.figures.scene import Label
from windtunnel.assessments.queries.assess import assess
from windtunnel.assessments.queries.family import FAMILY
from windtunnel.assessments.queries.figures import (
    QueryGalleryVisualiser,
    QueryHistogramsVisualiser,
    SuccessAgainstQueriesVisualiser,
    SuccessCurvesVisualiser,
)
from windtunnel.core.contracts import Norm
from windtunnel.evaluation.summary.evidence import region_evidence
from windtunnel.operations.tracking.state import ChildState
from windtunnel.params.attacks import QueryEntry
from windtunnel.params.entry import Budget
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.regions import PerturbationBall

ALL = (SuccessAgainstQueriesVisualiser(), QueryHistogramsVisualiser(), QueryGalleryVisualiser())


@pytest.fixture(scope="module")
def few(digits_subject):
    return digits_subject.subset(torch.arange(20))


def written(subject, folder, **entry):
    name = folder.name
    result = assess(name, QueryEntry(**{"algorithm": "EvoBA", **entry}), Budget(norm=Norm.LINF, epsilon=0.1), subject)
    return write_artifacts(result, folder, subject, started=0)


def test_the_default_figures_are_drawn_and_alike_twice(few, tmp_path):
    artifacts = written(few, tmp_path / "evoba", params={"generations": 3})
    paths = draw_figures(artifacts, ALL)
    assert [path.name.split("_")[0] for path in paths] == list(FAMILY.visualisers)
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in draw_figures(artifacts, ALL)] == first
    assert min(Image.open(paths[0]).size) > 300


def test_the_gallery_says_prediction_confidence_and_queries_of_successes_and_failures(few, tmp_path):
    artifacts = written(few, tmp_path / "evoba", params={"generations": 3})
    (grid,) = QueryGalleryVisualiser(max_successes=2, max_failures=1).draw(artifacts)
    (_, clean), (_, perturbed) = grid.rows
    after = [picture.text for picture in perturbed]
    assert len(clean) == len(after) == 3
    assert sum("broken" in text for text in after) == 2
    assert sum("failed" in text for text in after) == 1
    assert all("%" in text and "queries" in text for text in after)
    cheapest, dearest = (int(text.split()[2]) for text in after[:2])
    assert (cheapest, dearest) == (min(artifacts.metrics["queries_succ"]), max(artifacts.metrics["queries_succ"]))


@pytest.mark.parametrize("visualiser", ALL, ids=lambda v: type(v).__name__)
def test_no_success_nothing_attacked_and_no_queries_are_said_in_words(few, tmp_path, visualiser):
    hard = written(
        few, tmp_path / "hard", params={"generations": 1, "generation_size": 1}, budget={"norm": "L2", "epsilon": 1e-6}
    )
    assert hard.metrics["count_succ"] == 0
    wrong = replace(few, dataset=replace(few.dataset, targets=(few.clean_predictions + 1) % 10))
    nobody = written(wrong, tmp_path / "nobody")
    other = replace(hard, data={key: value for key, value in hard.data.items() if key != "queries"})
    for artifacts in (hard, nobody, other):
        if artifacts is hard and isinstance(visualiser, SuccessAgainstQueriesVisualiser | QueryGalleryVisualiser):
            assert visualiser.draw(artifacts)  # failures are to be seen
            continue
        with pytest.raises(NothingToDraw):
            visualiser.draw(artifacts)


def test_curves_of_several_attacks_share_one_figure_that_names_their_bounds(few, tmp_path):
    both = (written(few, tmp_path / "free"), written(few, tmp_path / "bound", budget={"epsilon": 5}))
    (scene,) = SuccessCurvesVisualiser(both).draw(both[0])
    words = [mark.text for mark in scene.marks if isinstance(mark, Label)]
    assert {"free (EvoBA, no bound)", "bound (EvoBA, L0 ≤ 5)"} <= set(words)


def test_an_attack_that_had_nobody_to_attack_has_no_curve_among_the_others(few, tmp_path):
    wrong = replace(few, dataset=replace(few.dataset, targets=(few.clean_predictions + 1) % 10))
    nobody, free = written(wrong, tmp_path / "nobody"), written(few, tmp_path / "free")
    with pytest.raises(NothingToDraw):
        SuccessCurvesVisualiser((nobody,)).draw(nobody)
    (scene,) = SuccessCurvesVisualiser((nobody, free)).draw(free)
    words = [mark.text for mark in scene.marks if isinstance(mark, Label)]
    assert "free (EvoBA, no bound)" in words
    assert not any("nobody" in word for word in words)


def test_mlflow_gets_the_curve_stepped_by_queries(few, tmp_path):
    artifacts = written(few, tmp_path / "evoba")
    state = ChildState("evoba", artifacts.directory, artifacts.metadata, "")
    steps = [step for step, _ in state.curves["success_rate_curve"]]
    assert steps == artifacts.metrics["query_budgets"]
    assert {f"success_rate_curve_ci_{end}" for end in ("low", "high")} <= set(state.curves)
    assert {"count_succ", "queries_succ_mean", "l0_dists_succ_median", "l2_dists_succ_mean_pp"} <= set(state.metrics)


def test_an_attack_without_a_bound_enters_the_sandwich_only_where_its_examples_lie_inside(few, tmp_path):
    clean = write_artifacts(assess_clean(Clean(), few), tmp_path / "clean", few, started=0)
    free = written(few, tmp_path / "free")
    small = region_evidence(PerturbationBall(Norm.LINF, 0.05), clean, [free])
    assert not small.drawn.any()
    assert not small.broken.any()
    five = region_evidence(PerturbationBall(Norm.L0, 5), clean, [free])
    nearer = torch.tensor(free.metrics["l0_dists_succ"]) <= 5
    assert five.broken.sum() == nearer.sum()
