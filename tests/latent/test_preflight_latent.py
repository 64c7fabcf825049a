"""What a latent assessment refuses, in one line, before anything is computed."""

import pytest
from rich.console import Console

from windtunnel.cli.check import check_compatibility
from windtunnel.core.errors import UserError
from windtunnel.latent.models import load_models
from windtunnel.latent.preflight import preflight
from windtunnel.params.entry import Budget
from windtunnel.params.latent import LatentEntry
from windtunnel.params.load import validate_params

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


def test_check_says_what_is_wrong_with_generators_and_models_before_anything_runs():
    raw = {"data": {"samples": {"n": 20}}, "model": {"train": {"architecture": "mlp"}}, "budget": {"epsilon": 0.1}}
    latent = {"m": {"models": ["runs/nowhere"]}}
    params = validate_params({**raw, "latent": latent})
    lines = check_compatibility(params, Console(quiet=True))
    assert len(lines) == 2
    assert lines[0].startswith("generators.source: none, but latent has entries")
    assert "latent.m.models[0]" in lines[1]
    assert (
        check_compatibility(validate_params({**raw, "generators": {"source": "function"}}), Console(quiet=True)) == []
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"latent": {"m": {"noise_levels": [0.5, 0.5]}}}, "repeats"),
        ({"latent": {"m": {"decay_epsilon": 0}}}, "decay_epsilon"),
        ({"generators": {"value_range": [1, -1]}}, "is empty"),
        ({"generators": {"train": {"algorithm": "wgan"}}}, "Did you mean 'wgan-gp'"),
        ({"generators": {"sorce": "train"}}, "Did you mean 'source'"),
    ],
)
def test_mistakes_in_params_are_one_line(changes, says):
    with pytest.raises(UserError, match=says) as caught:
        validate_params({"data": {}, "model": {}, "budget": {"epsilon": 0.1}, **changes})
    assert len(str(caught.value).splitlines()) == 1
