"""The noise model: what it keeps, where it tends to, and that likelihood and norm are each other's inverse."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from windtunnel.assessments.latent.noise import decay, log_likelihood, perturb, scaled_norm, shrink

EPSILONS = st.floats(1e-3, 1e3)


def draws(n, dim, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("epsilon", "value"), [(0.5, 0.106), (1.0, 0.293)])
def test_the_papers_decay_factors(epsilon, value):
    assert decay(epsilon) == pytest.approx(value, abs=5e-4)


@given(EPSILONS)
def test_noise_keeps_the_standard_normal(epsilon):
    noisy = perturb(draws(4000, 4), epsilon, torch.Generator().manual_seed(1))
    assert noisy.mean().abs() < 0.05
    assert torch.allclose(noisy.T.cov(), torch.eye(4), atol=0.1)


@given(EPSILONS)
def test_a_codes_noisy_versions_have_the_stated_mean_and_variance(epsilon):
    code = torch.tensor([[1.0, -2.0, 0.5]])
    noisy = perturb(code.expand(4000, 3), epsilon, torch.Generator().manual_seed(1))
    sigma = epsilon / sqrt(1 + epsilon**2)
    assert torch.allclose(noisy.mean(0), code[0] * shrink(epsilon), atol=0.08 * sigma + 1e-6)
    assert torch.allclose(noisy.std(0), torch.full((3,), sigma), rtol=0.1)


def test_little_noise_changes_little_and_much_noise_forgets():
    codes = draws(2000, 8)
    assert torch.allclose(perturb(codes, 1e-6, torch.Generator().manual_seed(1)), codes, atol=1e-4)
    forgotten = perturb(codes, 1e4, torch.Generator().manual_seed(1))
    correlation = torch.corrcoef(torch.stack([codes.flatten(), forgotten.flatten()]))[0, 1]
    assert correlation.abs() < 0.03


@given(st.floats(0.05, 5), st.integers(1, 32))
def test_the_likelihood_is_the_density_of_the_noise(epsilon, dim):
    change = draws(1, dim).double()
    density = Normal(torch.zeros(dim, dtype=torch.float64), epsilon / sqrt(1 + epsilon**2)).log_prob(change).sum()
    assert float(log_likelihood(scaled_norm(change), epsilon, dim)) == pytest.approx(float(density), rel=1e-6)


def test_a_scaled_norm_is_about_one_for_any_dimension():
    for dim in (16, 64, 512):
        assert scaled_norm(draws(500, dim)).mean() == pytest.approx(1, abs=0.03)
