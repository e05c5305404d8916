"""Distributions against scipy's, and the errors and the power of several tests together."""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import scipy
from scipy import special
from statements import known

from gpuscale.analysis.estimates import Term, difference
from gpuscale.analysis.probabilities import (
    benjamini_hochberg,
    chi_squared_median,
    crossing_probability,
    nominal_error,
    normal_quantile,
    t_probability,
    t_quantile,
)

DFS = (0.37, 1, 1.5, 2, 3.3, 7, 12.9, 60, 1000, 250_000.5)


@pytest.mark.parametrize("df", DFS)
def test_students_distribution_agrees_with_scipy(df: float) -> None:
    for quantile in (-1e6, -40.0, -7.5, -2.3, -1.0, -1e-3, 0.0, 0.5, 3.0, 1e6):
        expected = special.stdtr(df, quantile)
        assert t_probability(quantile, df) == pytest.approx(expected, rel=1e-8, abs=1e-290)
    for probability in (1e-12, 1e-5, 0.01, 0.3, 0.4999, 0.5, 0.6, 0.95, 0.9999):
        back = special.stdtr(df, t_quantile(probability, df))
        assert back == pytest.approx(probability, rel=1e-8)


@pytest.mark.parametrize("df", [1e7, math.inf])
def test_many_degrees_of_freedom_are_normal(df: float) -> None:
    assert t_probability(-2.0, df) == pytest.approx(special.ndtr(-2.0), rel=1e-12)
    assert t_quantile(0.975, df) == normal_quantile(0.975)
    assert t_quantile(0.975, 0.99e7) == pytest.approx(normal_quantile(0.975), rel=1e-6)


def test_normal_probabilities_agree_with_scipy_also_far_out() -> None:
    for quantile in (-37.0, -8.0, -1.0, 0.0, 2.0):
        probability = t_probability(quantile, math.inf)
        assert probability == pytest.approx(special.ndtr(quantile), rel=1e-12)
        back = normal_quantile(probability)
        assert back == pytest.approx(quantile, rel=1e-9, abs=1e-9)


def test_the_ends_of_the_scale_are_infinite_or_as_far_as_a_square_goes() -> None:
    assert (normal_quantile(0.0), normal_quantile(1.0)) == (-math.inf, math.inf)
    assert t_quantile(0.0, 2) == -1e140
    assert t_quantile(1e-200, 0.37) == -1e140
    assert t_probability(-1e300, 0.37) > 0


def test_chi_squared_medians_agree_with_scipy() -> None:
    for df in (0.5, 1, 2, 3, 5, 17, 300, 2000):
        assert chi_squared_median(df) == pytest.approx(special.chdtri(df, 0.5), rel=1e-9)


def test_benjamini_hochberg_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    probabilities = [0.001, 0.03, 0.03, *rng.uniform(0, 1, 20).tolist()]
    expected = scipy.stats.false_discovery_control(probabilities)
    assert benjamini_hochberg(probabilities, [2.0] * 23) == pytest.approx(tuple(expected))
    assert benjamini_hochberg([], []) == ()
    assert benjamini_hochberg([0.2], [1.0]) == (0.2,)


def test_weights_share_the_error_of_a_family_out() -> None:
    # Of a mean weight of 1, the first test may spend 1.6 and the second 0.4.
    assert benjamini_hochberg([0.004, 0.9], [4.0, 1.0]) == pytest.approx((0.005, 1.0))
    assert benjamini_hochberg([0.9, 0.004], [4.0, 1.0]) == pytest.approx((0.9, 0.02))
    # No p gets smaller for standing in a family.
    assert benjamini_hochberg([0.004, 0.004], [4.0, 1.0]) == pytest.approx((0.005, 0.01))
    assert benjamini_hochberg([0.004, 1e-9], [4.0, 1.0]) == pytest.approx((0.004, 5e-9))


def test_a_weighted_family_of_nulls_errs_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(6)
    weights = [1.0, 1.0, 0.25, 0.25]
    families = rng.uniform(0, 1, (4000, 4)).tolist()
    alarms = sum(min(benjamini_hochberg(family, weights)) < 0.05 for family in families)
    assert alarms / 4000 == pytest.approx(0.05, abs=0.012)


def test_a_detectable_loss_is_found_19_times_in_20() -> None:
    rng = np.random.default_rng(4)
    deviation, trials = 0.01, 4000
    exact = difference(0.0, [Term(variance=deviation**2, df=math.inf)])
    loss = known(exact.detectable_loss())
    # None within the margin is.
    assert exact.detectable_loss(margin=0.1) == pytest.approx(1 - 0.9 * math.exp(-0.0164485))
    p = scipy.stats.norm.cdf(rng.normal(math.log1p(-loss), deviation, trials) / deviation)
    assert np.mean(p < 0.01) == pytest.approx(0.95, abs=0.015)


def test_fewer_degrees_of_freedom_detect_less() -> None:
    losses = [
        difference(0.0, [Term(variance=1e-4, df=df)]).detectable_loss()
        for df in (2, 5, 50, math.inf)
    ]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(losses))
    assert difference(0.0, [None]).detectable_loss() is None


@pytest.mark.parametrize(
    ("analyses", "two_sided", "published_bound"),
    # Jennison and Turnbull, Group Sequential Methods (2000), table 2.1.
    [(2, 0.05, 2.178), (5, 0.05, 2.413), (2, 0.01, 2.772), (5, 0.01, 2.986)],
)
def test_bounds_are_pococks(analyses: int, two_sided: float, published_bound: float) -> None:
    bound = NormalDist().inv_cdf(1 - nominal_error(two_sided / 2, 1, analyses))
    assert bound == pytest.approx(published_bound, abs=2e-3)


def test_the_chance_to_cross_a_bound_is_that_of_simulated_means() -> None:
    rng = np.random.default_rng(1)
    sums = rng.normal(size=(200_000, 8)).cumsum(axis=1)[:, 2:]
    crossed = (sums / np.sqrt(np.arange(3, 9)) > 2.0).any(axis=1).mean()
    shares = [runs / 8 for runs in range(3, 9)]
    assert crossing_probability(shares, 2.0) == pytest.approx(crossed, abs=0.002)
