"""Every label of a multi-label model: rates over images, against closed forms of a linear model in every family."""

import numpy as np
import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.boundary.models.heads import Headed, head_of
from windtunnel.params.model import Model
from windtunnel.reporting.compare.comparison import compare_runs
from windtunnel.reporting.compare.images import LABEL
from windtunnel.reporting.compare.page import document, markdown, render_comparison, title
from windtunnel.reporting.compare.runs import run_in

LABELS, EPSILON, N = ["smiling", "glasses", "hat"], 0.05, 40
SQUARE = {
    "library": "torchattacks",
    "algorithm": "Square",
    "max_queries": 40,
    "samples": {"n": 10, "selection": "first"},
}
ENTRY = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": EPSILON / 4}}


@pytest.fixture(scope="module")
def linear():
    """A linear model of three labels, images in [0, 1], and labels of which it gets some wrong."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, len(LABELS)))
    images = torch.rand(N, 1, 4, 4)
    with torch.no_grad():
        network[1].bias -= network(images).mean(0)
        flipped = torch.rand(N, len(LABELS)) < 0.1
        answers = network(images) > 0
    return network.eval(), images, (answers ^ flipped).long()


@pytest.fixture(scope="module")
def runs(linear, tmp_path_factory):
    network, images, labels = linear
    root, found = tmp_path_factory.mktemp("labels"), []
    for column, label in enumerate(LABELS):
        head = head_of(Model(head={"labels": LABELS, "label": label}))
        result = wt.assess(
            Headed(network, head),
            images,
            labels[:, column],
            budget=f"Linf {EPSILON}",
            attacks={"pgd": ENTRY},
            queries={"square": SQUARE},
            sweeps={"sweep": {"epsilons": [0, EPSILON]}},
            verify={"ibp": {"library": "auto-LiRPA", "algorithm": "ibp"}},
            corrupt={"bright": {"library": "windtunnel", "algorithm": "brightness"}},
            sanity=None,
        )
        result.save(root / label)
        (root / label / "params.yaml").write_text(f"model: {{head: {{label: {label}}}}}\n")
        found.append(run_in(root / label, label))
    return found


def robust_by_hand(linear):
    """bool (N, L): right, and right for every image of the box around the image within [0, 1]; in numpy."""
    network, images, labels = linear
    weight, bias = (tensor.detach().numpy().astype(np.float64) for tensor in network[1].parameters())
    x, yes = images.flatten(1).numpy().astype(np.float64), labels.numpy() > 0
    low, high = np.clip(x - EPSILON, 0, 1), np.clip(x + EPSILON, 0, 1)
    least = low @ np.clip(weight, 0, None).T + high @ np.clip(weight, None, 0).T + bias
    most = high @ np.clip(weight, 0, None).T + low @ np.clip(weight, None, 0).T + bias
    return np.where(yes, least > 0, most <= 0)


def rows_of(runs):
    section = next(part for part in document(compare_runs(runs)) if part.title == "Over images: every label")
    return {name: (float(rate.split("%")[0]), int(images)) for name, rate, images in section.blocks[0].rows}


def test_each_label_and_every_label_agree_with_the_closed_form_of_a_linear_model(linear, runs):
    robust, rows = robust_by_hand(linear), rows_of(runs)
    for outcome in ("pgd", "ibp", "worst case", "certified"):
        for column, label in enumerate(LABELS):
            assert rows[f"{outcome}.{label}"] == (pytest.approx(100 * robust[:, column].mean(), abs=0.06), N), outcome
        assert rows[f"{outcome}, every label"] == (pytest.approx(100 * robust.all(1).mean(), abs=0.06), N), outcome


def test_every_family_has_a_row_of_each_label_and_one_of_images(linear, runs):
    network, images, labels = linear
    rows = rows_of(runs)
    right = ((network(images) > 0).long() == labels).numpy()
    assert rows["clean, every label"] == (pytest.approx(100 * right.all(1).mean(), abs=0.06), N)
    robust = robust_by_hand(linear).all(1)
    for outcome, n in (("square", 10), ("sweep", N), ("bright (every corruption)", N)):
        assert all(f"{outcome}.{label}" in rows for label in LABELS)
        least = 0 if outcome.startswith("bright") else 100 * robust[:n].mean() - 0.06
        assert least <= rows[f"{outcome}, every label"][0] <= 100 * right[:n].all(1).mean() + 0.06
        assert rows[f"{outcome}, every label"][1] == n  # images, not image-label pairs


def test_images_that_one_label_did_not_assess_do_not_count(linear, runs, tmp_path):
    network, images, labels = linear
    head = head_of(Model(head={"labels": LABELS, "label": "hat"}))
    few = wt.assess(
        Headed(network, head), images[:20], labels[:20, 2], budget=f"Linf {EPSILON}", attacks={"pgd": ENTRY}
    )
    few.save(tmp_path / "hat")
    (tmp_path / "hat" / "params.yaml").write_text("model: {head: {label: hat}}\n")
    rows = rows_of([*runs[:2], run_in(tmp_path / "hat", "hat")])
    assert rows["pgd, every label"] == (pytest.approx(100 * robust_by_hand(linear)[:20].all(1).mean(), abs=0.06), 20)
    assert rows["pgd.smiling"][1] == N


def test_runs_that_also_differ_in_their_budget_are_not_summed_up(runs, tmp_path):
    params = runs[2].params | {"budget.epsilon": "0.1"}
    others = [
        type(run)(run.label, run.origin, {**run.params, "budget.epsilon": "0.05"}, run.metrics, run.reports)
        for run in runs
    ]
    others[2] = type(runs[2])("hat", "directory", params, runs[2].metrics, runs[2].reports)
    (section,) = (part for part in document(compare_runs(others)) if part.title.startswith("Over images"))
    assert section.blocks[0].text == "Not summed up: the runs also differ in budget.epsilon."


def test_the_page_and_the_comment_show_the_images(runs, tmp_path):
    comparison = compare_runs(runs)
    assert "| pgd, every label |" in markdown(title(comparison), document(comparison))
    render_comparison(comparison, tmp_path / "labels.html")
    assert "pgd, every label" in (tmp_path / "labels.html").read_text()
    assert LABEL in markdown(title(comparison), document(comparison))
