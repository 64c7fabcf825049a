"""The whole assessment: exact on the analytic case, complete on digits, and every number from the file alone."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.assessments.latent.linear import closed_form, linear_case
from tests.conftest import classifier_of
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.latent.assess import assess, by_frequency, depends_on_batch
from windtunnel.assessments.latent.metrics import (
    NAMES,
    accuracy,
    conventional_metrics,
    distributions,
    noise_accuracy,
    per_class,
    severity,
    side_metrics,
)
from windtunnel.assessments.latent.noise import scaled_norm, shrink
from windtunnel.boundary.generators.load import fit
from windtunnel.boundary.generators.quality import Quality
from windtunnel.boundary.generators.training import train_generators
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.contracts import Norm, PerturbationBudget, Verdict
from windtunnel.core.errors import UserError
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.params.latent import GeneratorRecipe, LatentEntry
from windtunnel.params.model import Recipe
from windtunnel.records.artifacts import read_artifacts, write_artifacts

QUICK = {"generated": 30, "codes": 200, "minimum": {"rho": 2.5, "restarts": 4}, "bounded": {"rho": 0.3, "restarts": 4},
         "noise_draws": 4, "conventional": {"restarts": 2, "steps": 20, "step_size": 0.1}}  # fmt: skip
pytestmark = pytest.mark.slow
EIGHT = ("lga", "lra", "llna_generation", "llna_reconstruction", "lags", "lars", "laga", "lara")


@pytest.fixture(scope="module")
def generators(digits):
    assessed, train = digits
    recipe = GeneratorRecipe(steps=300)
    return fit(train_generators(recipe, train, 0, torch.device("cpu")), "vae", None, torch.device("cpu"), assessed)


@pytest.fixture(scope="module")
def assessed(mlp_subject, digits, generators, tmp_path_factory):
    """(subject, entry, artifacts) of digits, with two further classifiers."""
    subject = mlp_subject.subset(torch.arange(40))
    entry = LatentEntry(**QUICK, batch_size=25)
    recipes = {
        "runs/robust": Recipe(architecture="mlp", recipe="adversarial", epochs=8),
        "runs/short": Recipe(architecture="mlp", epochs=3),
    }
    others = {
        name: classifier_of(train_classifier(recipe, digits[1], 0, torch.device("cpu")), 10, (1, 8, 8), name)
        for name, recipe in recipes.items()
    }
    result = assess("manifold", entry, subject, generators, Quality(frechet_distance=1.0), others)
    return subject, entry, write_artifacts(result, tmp_path_factory.mktemp("latent"), subject, started=0.0)


def test_llar_lags_and_lara_are_the_closed_form_on_the_linear_case():
    subject, generators = linear_case()
    entry = LatentEntry(generated=50, codes=100, bounded={"rho": 1.2}, minimum={"rho": 5}, conventional=None)
    result = assess("linear", entry, subject, generators)
    targets = subject.dataset.targets
    exact = closed_form(subject, generators, result.data["latents"], targets, entry.decay_epsilon[0])
    assert torch.allclose(result.data["perturbation_distance"], exact, atol=1e-3)
    made = result.data["generated"]
    exact_made = closed_form(subject, generators, made["latents"], made["classes"], entry.decay_epsilon[0])
    assert torch.allclose(made["distances"], exact_made, atol=1e-3)
    assert result.metrics["lars"] == pytest.approx(float(exact.mean()), abs=1e-3)
    assert result.metrics["lags"] == pytest.approx(float(exact_made.mean()), abs=1e-3)
    assert 0 < result.metrics["lara"] < 1
    assert result.metrics["lara"] == pytest.approx(float((exact > 1.2).double().mean()), abs=1e-3)
    assert result.metrics["laga"] == pytest.approx(float((exact_made > 1.2).double().mean()), abs=1e-3)


def test_all_eight_metrics_are_there_with_intervals_and_per_class(assessed):
    _, _, artifacts = assessed
    metrics = artifacts.metrics
    for name in EIGHT:
        assert metrics[f"{name}_ci_low"] <= metrics[name] + 1e-9, name
        assert metrics[name] <= metrics[f"{name}_ci_high"] + 1e-9, name
    assert metrics["lra"] > metrics["clean_accuracy"] - 0.1
    assert len(metrics["per_class"]) == 10
    for row in metrics["per_class"]:
        assert {"lga", "lra", "lara", "laga", "llna_generation", "llna_reconstruction", "lars_not_found"} <= set(row)
    assert artifacts.metadata.model_dump(mode="json")["semantics"]["norm"] == "latent_L2"
    assert artifacts.metadata.model_dump(mode="json")["semantics"]["perturbation"]["epsilon"] == 0.3


def test_every_metric_can_be_computed_again_from_the_file(assessed):
    _, _, written = assessed
    artifacts = read_artifacts(written.directory)
    data, metrics = artifacts.data, artifacts.metrics
    renamed = {
        "reconstructed_inputs": "inputs",
        "reconstructed_predictions": "predictions",
        "perturbation_distance": "distances",
    }
    real = {renamed.get(key, key): value for key, value in data.items()}
    made, targets = data["generated"], data["targets"]
    again = {
        **side_metrics("reconstruction", real, targets, 0.3),
        **side_metrics("generation", made, made["classes"], 0.3),
        **accuracy(data["generated_accuracy"]["predictions"], data["generated_accuracy"]["classes"]).metrics("lga"),
        **conventional_metrics(data["conventional"], targets, {"scaled_l2": (0.05,), "linf": (0.075,)}),
    }
    again = json.loads(json.dumps(again))
    assert again == {key: metrics[key] for key in again}
    assert set(NAMES["reconstruction"]) <= set(again)
    assert metrics["distributions"]["generation"] == distributions(made["latents"], made, shrink(0.5))
    sides = {"reconstruction": (real, targets), "generation": (made, made["classes"])}
    codes = (data["generated_accuracy"]["predictions"], data["generated_accuracy"]["classes"])
    rows = json.loads(json.dumps(per_class(artifacts.class_names, sides, codes, 0.3)))
    assert rows == metrics["per_class"]


def test_examples_are_decoded_codes_inside_their_balls_and_the_classifier_confirms_them(assessed, generators):
    subject, _, artifacts = assessed
    targets, distances = artifacts.tensor("targets"), artifacts.tensor("perturbation_distance")
    found = distances.isfinite()
    assert found.any()
    alone = subject.classifier.logits(artifacts.tensor("perturbed_inputs"), batch_size=1).argmax(1)
    assert torch.equal(alone, artifacts.tensor("perturbed_predictions"))
    assert (alone[found] != targets[found]).all()
    assert (distances[found] <= 2.5 + 1e-4).all()
    decoded = generators.decode(artifacts.tensor("perturbed_latents"), targets)
    assert torch.allclose(decoded, artifacts.tensor("perturbed_inputs"), atol=1e-5)
    broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
    assert torch.equal(broken, distances <= 0.3)


def test_two_runs_give_equal_bytes(assessed, generators):
    subject, entry, artifacts = assessed
    again = assess("manifold", entry, subject, generators)
    for key in ("latents", "perturbed_latents", "noisy_predictions"):
        assert torch.equal(again.data[key], artifacts.tensor(key)), key


def test_further_classifiers_see_the_same_codes_and_are_correlated(assessed):
    _, _, artifacts = assessed
    models = artifacts.metrics["models"]
    assert [row["model"] for row in models] == ["this run", "runs/robust", "runs/short"]
    assert all({*EIGHT, "noise_accuracy", "adversarial_severity_linf"} <= set(row) for row in models)
    # Adversarial training raises the conventional severity: a finding of the paper to see again.
    assert models[1]["adversarial_severity_linf"] > models[0]["adversarial_severity_linf"]
    lines = artifacts.metrics["correlations"]
    assert all(line["n"] == 3 for line in lines)
    assert all(-1.001 <= line["pearson"] <= 1.001 for line in lines if "pearson" in line)
    pairs = {(line["x"], line["y"]) for line in lines}
    assert {("clean_accuracy", "lars"), ("lga", "lags"), ("lra", "laga")} <= pairs
    assert "few_classifiers" in {caveat.code for caveat in artifacts.caveats}


def test_the_examples_of_every_classifier_are_kept_and_their_distances_in_the_image_compared(assessed):
    """The paper's third finding: the nearest latent examples of a robust classifier lie further away in the image."""
    _, _, artifacts = assessed
    rows, robust = artifacts.metrics["models"], artifacts.data["model_1"]
    found = robust["reconstruction.distances"].isfinite()
    moved = (robust["reconstruction.perturbed_inputs"] - artifacts.tensor("decayed_inputs"))[found].flatten(1)
    assert rows[1]["image_change_l2_reconstruction"] == pytest.approx(float(scaled_norm(moved).mean()), rel=1e-5)
    assert rows[1]["image_change_l1_reconstruction"] == pytest.approx(float(moved.abs().mean(1).mean()), rel=1e-5)
    assert (robust["reconstruction.perturbed_predictions"][found] != artifacts.tensor("targets")[found]).all()
    print({row["model"]: row["image_change_l2_generation"] for row in rows})


def test_codes_that_are_not_standard_normal_are_measured_and_said(assessed):
    _, _, artifacts = assessed
    norm = artifacts.metrics["code_norm"]
    assert norm == pytest.approx(float(scaled_norm(artifacts.tensor("latents")).mean()))
    assert artifacts.metrics["code_norm_ci_low"] < norm < artifacts.metrics["code_norm_ci_high"]
    assert ("codes_not_standard_normal" in {caveat.code for caveat in artifacts.caveats}) == (abs(norm - 1) > 0.1)


def test_every_latent_figure_can_be_drawn(assessed):
    _, _, artifacts = assessed
    register_figures()
    names = [name for name in VISUALISERS if ".latent." in VISUALISERS[name].__module__]
    assert len(names) == 7
    of_generated = [VISUALISERS[f"Latent{what}Visualiser"](of="generation") for what in ("Grid", "Noise", "Comparison")]
    paths = draw_figures(artifacts, [*(VISUALISERS[name]() for name in names), *of_generated])
    assert all(path.stat().st_size > 5000 for path in paths)
    assert not any(row.empty for row in read_artifacts(artifacts.directory).metadata.visualisers)


def test_the_sandwich_does_not_hear_of_latent_examples(assessed):
    subject, _, artifacts = assessed
    clean = replace(artifacts, name="clean")
    summary = summarise(subject, PerturbationBudget(Norm.LINF, 1.0), clean, [artifacts])
    assert "worst_case_accuracy" not in summary.metrics or not summary.data["perturbation_distance"].any()
    assert [layer["norm"] for layer in summary.metrics["sandwich"]] == ["Linf"]
    assert summary.metrics["sandwich"][0]["n_attacked"] == 0


def test_tabular_data_has_metrics_and_figures_too(tmp_path):
    subject, generators = linear_case(n=12)
    entry = LatentEntry(generated=6, codes=20, minimum={"rho": 5, "restarts": 2}, conventional=None)
    written = write_artifacts(assess("table", entry, subject, generators), tmp_path, subject, started=0.0)
    names = (
        "LatentMetricsVisualiser",
        "LatentGridVisualiser",
        "GeneratorSheetVisualiser",
        "LatentDistributionsVisualiser",
    )
    assert all(path.is_file() for path in draw_figures(written, [VISUALISERS[name]() for name in names]))


class Grey(nn.Module):
    """Decodes every code to nearly the same grey, so that nothing is reconstructed."""

    latent_dim = 4

    def decode(self, latents, classes):
        return 0.5 + 0.01 * latents.mean(1).view(-1, 1, 1, 1).tanh().expand(-1, 1, 8, 8)


def test_a_poor_generator_without_an_encoder_is_said(mlp_subject):
    subject = mlp_subject.subset(torch.arange(20))
    model = fit(Grey(), "grey", None, torch.device("cpu"), subject.dataset)
    entry = LatentEntry(**QUICK, encoding={"restarts": 2, "steps": 5})
    result = assess("grey", entry, subject, model)
    codes = {caveat.code for caveat in result.caveats}
    assert {"poor_reconstruction", "codes_searched"} <= codes


def test_without_generators_the_line_says_what_to_set(mlp_subject):
    with pytest.raises(UserError, match=r"generators\.source"):
        assess("m", LatentEntry(), mlp_subject, None)


def test_a_prediction_that_depends_on_the_batch_is_noticed(mlp_subject):
    def classifier(*layers):
        return replace(mlp_subject.classifier, module=nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)).eval())

    inputs = mlp_subject.dataset.inputs
    assert not depends_on_batch(classifier(), inputs)
    assert not depends_on_batch(classifier(nn.InstanceNorm2d(1)), inputs)
    # The paper's networks: batch statistics at inference too.
    assert depends_on_batch(classifier(nn.BatchNorm2d(1, track_running_stats=False)), inputs)


def test_classes_are_drawn_in_the_frequency_of_the_samples():
    targets = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    assert torch.bincount(by_frequency(targets, 3, 50)).tolist() == [35, 10, 5]
    assert len(by_frequency(targets, 3, 7)) == 7


def test_severity_counts_what_was_not_found_and_the_median_treats_it_as_infinite():
    block = severity("lars", torch.tensor([0.1, 0.2, 0.3, torch.inf, torch.inf]))
    assert block["lars"] == pytest.approx(0.2)
    assert block["lars_not_found"] == 2
    assert block["lars_median"] == pytest.approx(0.3)
    assert "lars" not in severity("lars", torch.tensor([torch.inf]))
    assert "lars_median" not in severity("lars", torch.tensor([0.1, torch.inf, torch.inf]))


def test_noise_accuracy_is_the_mean_over_draws_and_samples():
    noisy = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [1, 1]]])
    assert noise_accuracy("llna", noisy, torch.tensor([0, 1]))["llna"] == pytest.approx(7 / 8)
