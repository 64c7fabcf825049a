import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from windtunnel.core.statistics import binomial_interval, binomial_rate

METHODS = ("wilson", "clopper_pearson", "jeffreys", "agresti_coull")


def test_wilson_of_none_in_a_hundred_is_the_published_bound():
    # docs/sanity-checks.md F4: 0/100 -> [0, 3.7 %] Wilson, 3.6 % Clopper-Pearson
    assert binomial_interval(0, 100) == pytest.approx((0, 0.0370), abs=1e-4)
    assert binomial_interval(0, 100, method="clopper_pearson") == pytest.approx((0, 0.0362), abs=1e-4)


def test_nothing_is_known_without_samples():
    assert binomial_interval(0, 0) == (0.0, 1.0)
    assert binomial_rate(0, 0).value == 0


@pytest.mark.parametrize("method", METHODS)
@given(n=st.integers(1, 400), share=st.floats(0, 1), level=st.floats(0.5, 0.999))
def test_the_interval_holds_the_estimate_and_stays_in_the_unit_interval(method, n, share, level):
    successes = round(share * n)
    low, high = binomial_interval(successes, n, level, method)
    assert 0 <= low <= successes / n <= high <= 1
    assert (low == 0) >= (successes == 0)
    assert (high == 1) >= (successes == n)


@pytest.mark.parametrize(
    ("method", "name"), [("wilson", "wilson"), ("clopper_pearson", "beta"), ("jeffreys", "jeffreys")]
)
@given(n=st.integers(1, 100_000), share=st.floats(0, 1), level=st.sampled_from([0.9, 0.95, 0.99]))
def test_an_interval_is_that_of_statsmodels_to_the_last_bit(method, name, n, share, level):
    successes = round(share * n)
    low, high = proportion_confint(successes, n, alpha=1 - level, method=name)
    expected = (0.0 if successes == 0 else low, 1.0 if successes == n else high)
    assert binomial_interval(successes, n, level, method) == expected


def test_certificates_need_no_statsmodels_and_attacks_no_scipy():
    code = (
        "import sys; from windtunnel.core.statistics import binomial_rate; binomial_rate(3, 9); assert 'scipy' not in sys.modules;"
        "binomial_rate(3, 9, method='clopper_pearson'); assert 'statsmodels' not in sys.modules and 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_more_successes_than_samples_are_refused():
    with pytest.raises(ValueError, match="successes"):
        binomial_interval(3, 2)
