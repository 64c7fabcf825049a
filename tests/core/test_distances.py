import torch
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance, within


def test_each_norm_of_a_known_change():
    clean = torch.zeros(1, 2, 1, 2)
    moved = torch.tensor([0.3, 0.0, -0.4, 0.0]).view(1, 2, 1, 2)
    found = {norm: round(float(distance(norm, clean, moved)), 6) for norm in (Norm.LINF, Norm.L2, Norm.L1, Norm.L0)}
    assert found == {Norm.LINF: 0.4, Norm.L2: 0.5, Norm.L1: 0.7, Norm.L0: 2.0}


@given(st.integers(0, 2**32 - 1))
def test_the_norms_are_ordered(seed):
    a, b = torch.rand(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    linf, l2, l1 = (distance(norm, a, b) for norm in (Norm.LINF, Norm.L2, Norm.L1))
    assert (linf <= l2 + 1e-6).all()
    assert (l2 <= l1 + 1e-6).all()
    assert (l2 <= 4 * linf + 1e-6).all()


def test_a_projected_sample_counts_as_within_and_a_larger_one_does_not():
    epsilon = 8 / 255
    assert within(torch.tensor([epsilon]), epsilon).all()
    assert not within(torch.tensor([epsilon * 1.001]), epsilon).any()
