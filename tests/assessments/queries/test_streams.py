"""The per-image random streams."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from windtunnel.assessments.queries.search import below, pixel_values, stream_seeds, uniforms

# The first outputs of SplitMix64 seeded with 1234567, as in Vigna's reference implementation.
GOLDEN = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)


def test_the_draws_are_those_of_splitmix64():
    draws = uniforms(torch.tensor([1234567]), torch.tensor([0]), 5)
    assert draws[0].tolist() == [(value >> 11) * 2.0**-53 for value in GOLDEN]


@given(seed=st.integers(-(2**63), 2**63 - 1), start=st.integers(0, 2**40), count=st.integers(1, 20))
def test_a_draw_depends_on_its_stream_and_its_place_alone(seed, start, count):
    alone = uniforms(torch.tensor([seed]), torch.tensor([start]), count)
    beside = uniforms(torch.tensor([3, seed]), torch.tensor([9, start]), count)[1]
    later = uniforms(torch.tensor([seed]), torch.tensor([start + count - 1]), 1)
    assert torch.equal(alone[0], beside)
    assert alone[0, -1] == later[0, 0]
    assert ((alone >= 0) & (alone < 1)).all()


def test_streams_are_uniform_and_do_not_depend_on_each_other():
    draws = uniforms(stream_seeds(0, "evoba", [f"s{i}" for i in range(200)]), torch.zeros(200, dtype=torch.int64), 200)
    assert stats.kstest(draws.flatten().numpy(), "uniform").pvalue > 0.001
    correlation = np.corrcoef(draws.numpy())[np.triu_indices(200, 1)]
    assert np.abs(correlation).max() < 0.4
    assert stats.kstest(correlation * 200**0.5, "norm").pvalue > 0.001


def test_a_seed_depends_on_run_name_and_sample():
    base = stream_seeds(0, "a", ["x", "y"])
    assert len({*base.tolist(), *stream_seeds(1, "a", ["x"]).tolist(), *stream_seeds(0, "b", ["x"]).tolist()}) == 4
    assert torch.equal(stream_seeds(0, "a", ["y"]), base[1:])


def test_integers_and_levels_cover_their_range():
    draws = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert below(draws, 10).tolist() == [0, 5, 9]
    assert pixel_values(draws, 256).tolist() == torch.tensor([0.0, 128 / 255, 1.0]).tolist()
    assert pixel_values(draws, None).max() <= 1
