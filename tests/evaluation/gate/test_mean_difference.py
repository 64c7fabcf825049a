"""The interval of a mean over samples with many images each: cases known in closed form, and how often it errs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm, ttest_1samp

from windtunnel.evaluation.gate.non_inferiority import Paired, mean_interval, samples_needed, tango_interval

counts = st.integers(0, 40)
tables = st.builds(Paired, both=counts, gained=counts, lost=counts, neither=counts).filter(lambda t: t.n > 0)
outcomes = st.lists(st.integers(-15, 15).map(lambda k: k / 15), min_size=1, max_size=60)


@given(table=tables, alpha=st.floats(0.005, 0.4))
def test_of_one_image_a_sample_it_is_tangos_interval(table, alpha):
    differences = [1] * table.gained + [-1] * table.lost + [0] * (table.both + table.neither)
    assert mean_interval(differences, alpha) == pytest.approx(tango_interval(table, alpha), abs=1e-6)


@pytest.mark.parametrize("n", [1, 30, 200])
def test_equal_outcomes_leave_room_for_samples_on_which_everything_is_lost(n):
    z = norm.ppf(0.95)
    assert mean_interval([0] * n, 0.05)[0] == pytest.approx(-(z**2) / (n + z**2))
    assert (mean_interval([0] * n, 0.05)[0] > -0.05) == (n >= samples_needed(0.05, 0.05))


def test_of_many_samples_it_is_the_paired_t_interval():
    differences = np.round(45 * np.random.default_rng(0).normal(0.01, 0.3, 5000).clip(-1, 1)) / 45
    expected = ttest_1samp(differences, 0).confidence_interval(0.9)
    assert mean_interval(differences, 0.05) == pytest.approx(tuple(expected), abs=1e-4)


def test_at_the_lower_end_the_score_test_with_the_likelihood_maximised_by_force_just_rejects():
    """The likeliest weights are found by a general optimiser here, instead of through a Lagrange multiplier."""
    differences = np.array([0.2, 0.2, 0.4, 0, 0, 0, 0, -0.2, -0.2, -0.6, 0, 0.2, -0.4, 0, 0])
    low, _ = mean_interval(differences, 0.05)
    values, seen = np.unique([-1, *differences], return_counts=True)
    seen[0] -= 1  # -1 was not observed
    found = minimize(
        lambda w: -(seen * np.log(np.maximum(w, 1e-12))).sum(), np.full(len(values), 1 / len(values)), method="SLSQP",
        bounds=[(0, 1)] * len(values), options={"ftol": 1e-12, "maxiter": 1000},
        constraints=[{"type": "eq", "fun": lambda w: w.sum() - 1}, {"type": "eq", "fun": lambda w: w @ values - low}],
    )  # fmt: skip
    assert found.success
    deviation = np.sqrt(found.x @ (values - low) ** 2 / len(differences))
    assert (differences.mean() - low) / deviation == pytest.approx(norm.ppf(0.95), abs=1e-3)


@given(differences=outcomes, alpha=st.floats(0.005, 0.4))
def test_it_holds_the_estimate_turns_with_the_pair_and_widens_with_a_smaller_risk(differences, alpha):
    low, high = mean_interval(differences, alpha)
    assert -1 <= low <= np.mean(differences) + 1e-9
    assert np.mean(differences) - 1e-9 <= high <= 1
    assert mean_interval([-d for d in differences], alpha) == pytest.approx((-high, -low), abs=1e-7)
    wide = mean_interval(differences, alpha / 2)
    assert wide[0] <= low + 1e-9
    assert high <= wide[1] + 1e-9


# Worse by 0.05: on 5 % of the samples everything is lost; on half of them a tenth; on half, by chance, one image in ten
# more than is gained.
WORSE = {
    "a few samples wholly": lambda rng, n: -(rng.random(n) < 0.05).astype(float),
    "many samples a little": lambda rng, n: -0.1 * (rng.random(n) < 0.5),
    "image by image": lambda rng, n: (rng.binomial(10, 0.2, n) - rng.binomial(10, 0.25, n)) / 10,
}


@pytest.mark.parametrize("how", WORSE)
def test_a_model_worse_by_the_margin_passes_no_oftener_than_alpha_says(how):
    rng = np.random.default_rng(0)
    passed = [mean_interval(WORSE[how](rng, 150), 0.05)[0] > -0.05 for _ in range(400)]
    assert np.mean(passed) < 0.08  # 0.05, and the chance of 400 draws


def test_a_model_that_is_as_good_image_by_image_passes_where_single_images_would_not_show_it():
    rng = np.random.default_rng(0)
    draws = rng.binomial(45, 0.6, (2, 40, 150)) / 45
    assert np.mean([mean_interval(two - one, 0.05)[0] > -0.05 for one, two in zip(*draws, strict=True)]) > 0.9


def test_no_samples_are_no_interval():
    with pytest.raises(ValueError, match="no paired samples"):
        mean_interval([], 0.05)
