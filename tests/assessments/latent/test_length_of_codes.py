"""A decoder that normalises codes is refused: a decayed code would decode to the reconstruction."""

import pytest
import torch

from windtunnel.assessments.latent.assess import _require_length
from windtunnel.boundary.generators.builtin import BUILTIN
from windtunnel.boundary.generators.interface import Generators
from windtunnel.core.errors import IncompatibleError
from windtunnel.params.latent import LatentEntry


def generators_of(algorithm):
    torch.manual_seed(0)
    model = BUILTIN[algorithm](3, 6, (1, 8, 8), 4)
    return Generators(model.eval(), 3, (0.0, 1.0), (0.0, 1.0), "digest", algorithm)


def test_a_sphere_autoencoder_is_refused_with_the_reason(digits_subject):
    with pytest.raises(IncompatibleError, match=r"latent\.x: .* fall by construction"):
        _require_length("x", generators_of("sphere"), digits_subject)


@pytest.mark.parametrize("algorithm", ["vae", "wgan-gp"])
def test_decoders_that_use_the_length_are_taken(algorithm, digits_subject):
    _require_length("x", generators_of(algorithm), digits_subject)


def test_a_key_of_minimum_keeps_the_default_radius():
    assert LatentEntry.model_validate({"minimum": {"restarts": 2}}).minimum.rho == 2.5
