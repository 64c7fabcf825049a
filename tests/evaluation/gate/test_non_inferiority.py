"""Non-inferiority on paired samples: published intervals, and what must hold of any interval."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import xlogy
from scipy.stats import norm

from windtunnel.evaluation.gate.non_inferiority import INTERVAL, Paired, paired_interval, samples_needed

# The example of Fagerland, Lydersen, Laake 2014, doi:10.1002/sim.6148: airway hyper-responsiveness before and after
# stem cell transplantation (Bentur et al. 2009); 95 % intervals.
BENTUR = Paired(both=1, gained=1, lost=7, neither=12)


@pytest.mark.parametrize(("method", "low", "high"), [("tango", -0.517, -0.026), ("newcombe", -0.507, -0.026)])
def test_published_intervals_are_met(method, low, high):
    assert paired_interval(BENTUR, 0.025, method) == pytest.approx((low, high), abs=5e-4)


@pytest.mark.parametrize("table", [BENTUR, Paired(53, 16, 8, 9), Paired(43, 0, 1, 0)])
def test_at_both_ends_the_score_test_with_the_likelihood_maximised_by_force_just_rejects(table):
    """The constrained maximum of the likelihood, found numerically here, instead of Tango's closed form."""
    z = norm.ppf(0.975)
    for delta, sign in zip(paired_interval(table, 0.025, "tango"), (1, -1), strict=True):

        def loss(q, delta=delta):  # q: probability of a loss, q + delta: of a gain
            same = table.both + table.neither
            return -(xlogy(table.gained, q + delta) + xlogy(table.lost, q) + xlogy(same, 1 - 2 * q - delta))

        bounds = (max(0.0, -delta), (1 - delta) / 2)
        q = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        score = (table.gained - table.lost - table.n * delta) / np.sqrt(table.n * (2 * q + delta - delta**2))
        assert score == pytest.approx(sign * z, abs=1e-3)


counts = st.integers(0, 60)
tables = st.builds(Paired, both=counts, gained=counts, lost=counts, neither=counts).filter(lambda t: t.n > 0)


@given(table=tables, method=st.sampled_from(sorted(INTERVAL)), alpha=st.floats(0.005, 0.4))
def test_an_interval_holds_the_estimate_and_turns_with_the_pair(table, method, alpha):
    low, high = paired_interval(table, alpha, method)
    assert -1 - 1e-9 <= low <= table.difference + 1e-9
    assert table.difference - 1e-9 <= high <= 1 + 1e-9
    turned = Paired(table.both, gained=table.lost, lost=table.gained, neither=table.neither)
    assert paired_interval(turned, alpha, method) == pytest.approx((-high, -low), abs=1e-6)


@given(table=tables, method=st.sampled_from(sorted(INTERVAL)))
def test_a_smaller_risk_gives_a_wider_interval(table, method):
    narrow, wide = paired_interval(table, 0.1, method), paired_interval(table, 0.01, method)
    assert wide[0] <= narrow[0] + 1e-9
    assert narrow[1] <= wide[1] + 1e-9


@pytest.mark.parametrize(("margin", "alpha"), [*itertools.product((0.01, 0.05, 0.2), (0.025, 0.05))])
def test_samples_needed_is_where_equal_outcomes_begin_to_pass(margin, alpha):
    n = samples_needed(margin, alpha)
    assert paired_interval(Paired(n, 0, 0, 0), alpha, "tango")[0] > -margin
    assert paired_interval(Paired(n - 1, 0, 0, 0), alpha, "tango")[0] <= -margin


@pytest.mark.parametrize("method", sorted(INTERVAL))
def test_a_model_worse_by_the_margin_passes_about_as_rarely_as_alpha_says(method):
    # 20 % of samples flip, 5 points more are lost than gained, n = 400; all within Monte Carlo error of 2000 draws.
    rng = np.random.default_rng(0)
    draws = rng.multinomial(400, [0.5, 0.075, 0.125, 0.3], size=2000)
    passed = [paired_interval(Paired(*map(int, row)), 0.05, method)[0] > -0.05 for row in draws]
    assert 0.03 < np.mean(passed) < 0.07


def test_no_pairs_are_no_interval():
    with pytest.raises(ValueError, match="no paired samples"):
        paired_interval(Paired(0, 0, 0, 0), 0.05, "tango")
