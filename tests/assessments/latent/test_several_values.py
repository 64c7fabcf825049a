"""Several decay epsilons and bounds in one entry, and no samples at all: metrics by value, tensors by value, all recomputable."""

import json

import pytest
import torch

from tests.assessments.latent.linear import closed_form, linear_case
from tests.assessments.latent.test_assess_latent import QUICK, Grey
from tests.conftest import classifier_of
from tools.recompute import differences
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.latent.assess import assess, metrics_from, one_of_each
from windtunnel.boundary.generators.load import fit
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.errors import UserError
from windtunnel.params.latent import LatentEntry
from windtunnel.params.model import Recipe
from windtunnel.records.artifacts import read_artifacts, write_artifacts

LINEAR = {"generated": 50, "codes": 100, "conventional": None, "minimum": {"rho": 5}}


def test_each_epsilon_and_each_bound_has_the_metrics_of_an_entry_of_its_own():
    subject, generators = linear_case()
    entry = LatentEntry(**LINEAR, decay_epsilon=[0.5, 1], bounded={"rho": [1.2, 0.6]})
    result = assess("m", entry, subject, generators)
    metrics = result.metrics
    alone = assess("m", LatentEntry(**LINEAR, decay_epsilon=1, bounded={"rho": 0.6}), subject, generators).metrics
    for name in ("lars", "lags"):
        assert metrics[f"{name}_epsilon_1"] == pytest.approx(alone[name], abs=1e-4)
        assert metrics[name] == metrics[f"{name}_epsilon_0.5"]
    for name in ("lara", "laga"):
        assert metrics[f"{name}_epsilon_1_rho_0.6"] == alone[name]
        assert metrics[name] == metrics[f"{name}_epsilon_0.5_rho_1.2"] <= metrics[f"{name}_epsilon_0.5_rho_0.6"]
        assert f"{name}_epsilon_1_rho_0.6_ci_low" in metrics
    exact = closed_form(subject, generators, result.data["latents"], subject.dataset.targets, 1.0)
    assert torch.allclose(result.data["epsilon_1.distances"], exact, atol=1e-3)
    assert result.data["broken_within"].shape == (40, 2)
    assert torch.equal(result.data["epsilon_1.broken_within"][:, 1], result.data["epsilon_1.distances"] <= 0.6)
    assert (metrics["decay_epsilons"], metrics["rhos"]) == ([0.5, 1.0], [1.2, 0.6])


def test_one_value_has_the_plain_names_alone():
    subject, generators = linear_case(n=10)
    metrics = assess("m", LatentEntry(**LINEAR), subject, generators).metrics
    assert not [key for key in metrics if "_epsilon_" in key or "_rho_" in key or key in {"rhos", "decay_epsilons"}]


@pytest.mark.slow
def test_lists_are_recomputed_from_the_file_and_drawn(mlp_subject, tmp_path):
    register_figures()
    subject = mlp_subject.subset(torch.arange(12))
    model = fit(Grey(), "grey", None, torch.device("cpu"), subject.dataset)
    conventional = {"linf": [0.075, 0.03], "scaled_l2": 0.05, "restarts": 1, "steps": 20, "step_size": 0.1}
    options = {**QUICK, "bounded": {"rho": [0.3, 0.1]}, "conventional": conventional}
    entry = LatentEntry(**options, decay_epsilon=[0.5, 1], encoding={"restarts": 2, "steps": 5})
    others = {"other": mlp_subject.classifier}
    written = write_artifacts(assess("m", entry, subject, model, {}, others), tmp_path, subject, started=0.0)
    artifacts = read_artifacts(written.directory)
    again = json.loads(json.dumps(metrics_from(entry, artifacts.data, subject)))
    assert not list(differences(artifacts.metrics, again))
    rates = [artifacts.metrics[f"adversarial_frequency_linf{bound}"] for bound in ("", "_bound_0.075", "_bound_0.03")]
    assert rates[0] == rates[1] >= rates[2]
    this, other = artifacts.metrics["models"]
    assert this == {**other, "model": "this run"}  # the same classifier on the same codes
    assert "image_change_l2_generation_epsilon_1" in this
    assert "generation.epsilon_1.perturbed_inputs" in artifacts.data["model_1"]
    figures = [VISUALISERS["LatentGridVisualiser"](epsilon=1.0), VISUALISERS["LatentMetricsVisualiser"]()]
    draw_figures(artifacts, [*figures, VISUALISERS["LatentGridVisualiser"](epsilon=0.7)])
    empty = [row.empty for row in read_artifacts(tmp_path).metadata.visualisers]
    assert empty[:2] == ["", ""]
    assert "0.7" in empty[2]


@pytest.mark.slow
def test_without_samples_a_generator_that_cannot_encode_is_not_searched(mlp_subject, digits, tmp_path, monkeypatch):
    register_figures()
    monkeypatch.setattr("windtunnel.assessments.latent.assess.search_codes", None)
    model = fit(Grey(), "grey", None, torch.device("cpu"), mlp_subject.dataset)
    entry = LatentEntry(**QUICK, samples={"n": 0})
    none = mlp_subject.choose(0, "first", 0)
    weak = classifier_of(
        train_classifier(Recipe(architecture="mlp", epochs=1), digits[1], 0, torch.device("cpu")), 10, (1, 8, 8)
    )
    result = assess("m", entry, none, model, {}, {"weak": weak}, mlp_subject)
    metrics = result.metrics
    assert {"lga", "lags_not_found", "laga", "llna_generation"} <= set(metrics)
    assert not [
        key
        for key in metrics
        if key.startswith(("lra", "lars", "lara", "llna_reconstruction", "code_norm", "adversarial_"))
    ]
    assert metrics["clean_accuracy"] == float(mlp_subject.clean_correct.double().mean())
    assert metrics["models"][1]["clean_accuracy"] < metrics["clean_accuracy"]
    assert {caveat.code for caveat in result.caveats} >= {"no_samples_encoded"}
    written = write_artifacts(result, tmp_path, none, started=0.0)
    artifacts = read_artifacts(written.directory)
    assert not list(differences(artifacts.metrics, json.loads(json.dumps(metrics_from(entry, artifacts.data, none)))))
    assert len(artifacts.tensor("verdicts")) == 0
    names = [name for name in VISUALISERS if ".latent." in VISUALISERS[name].__module__ and "Correlation" not in name]
    draw_figures(artifacts, [VISUALISERS[name]() for name in names])
    assert not any(row.empty for row in read_artifacts(tmp_path).metadata.visualisers)


def test_an_encoder_that_was_asked_for_and_is_not_there_is_refused(mlp_subject):
    model = fit(Grey(), "grey", None, torch.device("cpu"), mlp_subject.dataset)
    with pytest.raises(UserError, match=r"latent\.m\.encoding\.by: encoder"):
        assess("m", LatentEntry(encoding={"by": "encoder"}), mlp_subject.subset(torch.arange(4)), model)


def test_lists_in_params_are_read_and_written_as_people_write_them():
    entry = LatentEntry(decay_epsilon="1/2", bounded={"rho": ["1/10", 0.3]})
    assert (entry.decay_epsilon, entry.bounded.rho) == ((0.5,), (0.1, 0.3))
    written = entry.model_dump(mode="json")
    assert (written["decay_epsilon"], written["bounded"]["rho"]) == (0.5, [0.1, 0.3])
    for wrong in ({"decay_epsilon": []}, {"decay_epsilon": [0.5, 0.5]}, {"bounded": {"rho": [0.1, 0]}}):
        with pytest.raises(ValueError, match=r"repeats|at least|greater"):
            LatentEntry(**wrong)


def test_the_pictures_are_of_different_classes_first():
    assert one_of_each(torch.tensor([1, 1, 0, 1, 2, 0]), 4).tolist() == [0, 2, 4, 1]
