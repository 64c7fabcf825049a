"""Banks of networks are what separate networks would be, whatever is asked for together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from windtunnel.boundary.generators.banks import BUILTIN, decoder_bank, feature_bank, grouped, on_sphere
from windtunnel.boundary.generators.interface import PerClass

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 17, 23), (3, 64, 64), (12,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_decoders_and_encoders_fit_any_shape_and_stay_in_range(shape):
    codes = torch.randn(3, 2, 5)
    images = decoder_bank(3, 5, shape, 4)(codes)
    assert images.shape == (3, 2, *shape)
    assert (images > 0).all()
    assert (images < 1).all()
    assert feature_bank(3, shape, 7, 4)(images).shape == (3, 2, 7)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_subset_of_the_networks_gives_what_all_of_them_give(shape):
    bank, codes = decoder_bank(4, 5, shape, 4), torch.randn(4, 3, 5)
    which = torch.tensor([1, 3])
    assert torch.allclose(bank(codes)[which], bank(codes[which], which), atol=1e-6)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_each_row_goes_through_the_network_of_its_class(classes):
    torch.manual_seed(0)
    bank, labels = decoder_bank(4, 5, (1, 8, 8), 4), torch.tensor(classes)
    codes = torch.randn(len(labels), 5)
    expected = torch.stack([bank(code.expand(4, 1, 5))[label, 0] for code, label in zip(codes, labels, strict=True)])
    assert torch.allclose(grouped(bank, codes, labels), expected, atol=1e-6)


def test_nothing_in_gives_nothing_out():
    for shape in SHAPES:
        assert grouped(decoder_bank(4, 5, shape, 4), torch.empty(0, 5), torch.empty(0, dtype=torch.int64)).shape == (
            0,
            *shape,
        )


def test_images_are_differentiable_in_the_codes():
    for model in (build(10, 6, (1, 8, 8), 4) for build in BUILTIN.values()):
        codes = torch.randn(8, 6, requires_grad=True)
        (gradient,) = torch.autograd.grad(model.decode(codes, torch.arange(8)).sum(), codes)
        assert gradient.abs().sum() > 0


def test_a_sphere_autoencoder_knows_directions_only():
    model = BUILTIN["sphere"](3, 6, (1, 8, 8), 4)
    codes, classes = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    assert torch.allclose(model.decode(codes, classes), model.decode(3 * codes, classes), atol=1e-6)
    assert torch.allclose(on_sphere(codes).norm(dim=1), torch.full((5,), 6**0.5))


def test_one_model_per_class_is_joined_in_order():
    decoders = [nn.Linear(4, 3) for _ in range(3)]
    joined = PerClass(decoders, 4)
    codes, classes = torch.randn(7, 4), torch.tensor([2, 0, 0, 1, 2, 0, 1])
    expected = torch.stack([decoders[c](z) for z, c in zip(codes, classes.tolist(), strict=True)])
    assert torch.allclose(joined.decode(codes, classes), expected, atol=1e-6)
    assert not hasattr(joined, "encode")
    assert PerClass(decoders, 4, decoders).encode(codes, classes).shape == (7, 3)
