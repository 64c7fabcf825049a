"""A decoder that normalises codes is refused: a decayed code would decode to the reconstruction."""

import pytest
import torch

from windtunnel.boundary.generators.banks import BUILTIN
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.cli.compatibility import _generator_mistakes
from windtunnel.core.errors import IncompatibleError
from windtunnel.evaluation.validate import validate
from windtunnel.params.latent import LatentEntry


def generators_of(algorithm):
    torch.manual_seed(0)
    model = BUILTIN[algorithm](3, 6, (1, 8, 8), 4)
    return FittedGenerator(model.eval(), 3, (0.0, 1.0), (0.0, 1.0), "digest", algorithm)


def test_a_sphere_autoencoder_is_refused_with_the_reason():
    with pytest.raises(IncompatibleError, match=r"latent\.x: .* fall by construction"):
        generators_of("sphere").require_length_matters("latent.x")


def test_check_refuses_a_sphere_autoencoder_before_it_is_trained(digits):
    params = validate({
        "data": {"source": "digits"},
        "model": {"source": "train"},
        "budget": {"norm": "Linf", "epsilon": 0.1},
        "generators": {"source": "train", "train": {"algorithm": "sphere"}},
        "latent": {"x": {}},
    })  # fmt: skip
    mistakes = _generator_mistakes(params, digits[0], digits[1])
    assert [line.partition(":")[0] for line in mistakes] == ["latent.x"]
    assert "decayed image would be its reconstruction" in mistakes[0]


@pytest.mark.parametrize("algorithm", ["vae", "wgan-gp"])
def test_decoders_that_use_the_length_are_taken(algorithm):
    generators_of(algorithm).require_length_matters("latent.x")


def test_a_key_of_minimum_keeps_the_default_radius():
    assert LatentEntry.model_validate({"minimum": {"restarts": 2}}).minimum.rho == 2.5
