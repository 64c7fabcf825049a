"""What a latent assessment refuses, in one line, before anything is computed."""

import os

import pytest
import torch
from rich.console import Console

from windtunnel.assessments.latent.assess import load_models
from windtunnel.assessments.latent.preflight import preflight
from windtunnel.boundary.models.load import import_model
from windtunnel.cli.compatibility import check_compatibility
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate
from windtunnel.params.entry import Budget
from windtunnel.params.latent import LatentEntry
from windtunnel.params.model import Model

BUDGET = Budget(epsilon=0.1)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (LatentEntry(budget={"epsilon": 0.1}), r"latent\.m\.bounded\.rho"),
        (LatentEntry(params={"generatde": 3}), "Did you mean 'generated'"),
        (LatentEntry(bounded={"rho": 3}), r"minimum\.rho: 2.5 is smaller"),
        (LatentEntry(minimum={"rho": 2.5, "steps": 5}), "steps x step_size at least 1"),
        (LatentEntry(algorithm="latent_pdg"), "Did you mean 'latent_pgd'"),
    ],
)
def test_what_cannot_run_is_refused_with_the_remedy(mlp_subject, entry, says):
    with pytest.raises(UserError, match=says):
        preflight("latent.m", entry, BUDGET, mlp_subject.classifier, mlp_subject.dataset)


def test_a_model_that_is_not_there_is_named(mlp_subject):
    entry = LatentEntry(models=["runs/nowhere"])
    with pytest.raises(UserError, match=r"latent\.m\.models\[0\]: 'runs/nowhere' holds no model.json"):
        load_models("latent.m", entry, mlp_subject.dataset, "cpu", None)


@pytest.mark.slow
def test_models_of_earlier_runs_and_of_mlflow_are_loaded_by_what_names_them(mlp_subject, digits, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("e", artifact_location=(tmp_path / "a").as_uri()))
    with mlflow.start_run():
        example = mlp_subject.dataset.inputs[:2].numpy()
        module = mlp_subject.classifier.module
        mlflow.pytorch.log_model(
            module, name="m", input_example=example, registered_model_name="digits", serialization_format="pt2"
        )
    recipe = {"architecture": "mlp", "epochs": 1}
    import_model(Model(train=recipe), digits[1], 0, "cpu", tmp_path / "earlier" / "model")
    entry = LatentEntry(models=["models:/digits/1", "earlier", "earlier/model"])
    found = load_models("latent.m", entry, mlp_subject.dataset, "cpu", None)
    assert list(found) == entry.models
    inputs = mlp_subject.dataset.inputs
    assert torch.equal(found["models:/digits/1"].predict(inputs), mlp_subject.clean_predictions)
    assert torch.equal(found["earlier"].predict(inputs), found["earlier/model"].predict(inputs))
    with pytest.raises(UserError, match=r"models\[0\].*is unavailable"):
        load_models("latent.m", LatentEntry(models=["models:/nothing/1"]), mlp_subject.dataset, "cpu", None)


def test_check_says_what_is_wrong_with_generators_and_models_before_anything_runs():
    raw = {"data": {"samples": {"n": 20}}, "model": {"train": {"architecture": "mlp"}}, "budget": {"epsilon": 0.1}}
    latent = {"m": {"models": ["runs/nowhere"]}}
    params = validate({**raw, "latent": latent})
    lines = check_compatibility(params, Console(quiet=True))[0]
    assert len(lines) == 2
    assert lines[0].startswith("generators.source: none, but latent has entries")
    assert "latent.m.models[0]" in lines[1]
    assert check_compatibility(validate({**raw, "generators": {"source": "function"}}), Console(quiet=True))[0] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"latent": {"m": {"noise_levels": [0.5, 0.5]}}}, "repeats"),
        ({"latent": {"m": {"decay_epsilon": 0}}}, "decay_epsilon"),
        ({"budget": {"norm": "latent_L2", "epsilon": 0.1}}, "latent_L2 is the norm of latent searches"),
        (
            {"attacks": {"a": {"library": "torchattacks", "algorithm": "PGD", "budget": {"norm": "latent_L2"}}}},
            "latent_L2 is",
        ),
        ({"generators": {"value_range": [1, -1]}}, "is empty"),
        ({"generators": {"train": {"algorithm": "wgan"}}}, "Did you mean 'wgan-gp'"),
        ({"generators": {"sorce": "train"}}, "Did you mean 'source'"),
    ],
)
def test_mistakes_in_params_are_one_line(changes, says):
    with pytest.raises(UserError, match=says) as caught:
        validate({"data": {}, "model": {}, "budget": {"epsilon": 0.1}, **changes})
    assert len(str(caught.value).splitlines()) == 1
