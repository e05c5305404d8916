"""Several tests at once and again and again, the losses they find, and counted rates."""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from gpuscale.analysis.statistics.estimates import Term, difference
from gpuscale.analysis.statistics.significance import (
    benjamini_hochberg,
    crossing_probability,
    detectable_loss,
    nominal_error,
    rate_of,
)


def test_benjamini_hochberg_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    probabilities = [0.001, 0.03, 0.03, *rng.uniform(0, 1, 20).tolist()]
    expected = stats.false_discovery_control(probabilities)
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
    known = difference(0.0, [Term(variance=deviation**2, df=math.inf)])
    loss = detectable_loss(known)
    assert loss is not None
    # None within the margin is.
    assert detectable_loss(known, margin=0.1) == pytest.approx(1 - 0.9 * math.exp(-0.0164485))
    p = stats.norm.cdf(rng.normal(math.log1p(-loss), deviation, trials) / deviation)
    assert np.mean(p < 0.01) == pytest.approx(0.95, abs=0.015)


def test_fewer_degrees_of_freedom_detect_less() -> None:
    losses = [
        detectable_loss(difference(0.0, [Term(variance=1e-4, df=df)]))
        for df in (2, 5, 50, math.inf)
    ]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(losses))
    assert detectable_loss(difference(0.0, [None])) is None


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


def test_independent_trials_have_the_interval_of_clopper_and_pearson() -> None:
    rate = rate_of([(1, 1)] * 3 + [(0, 1)] * 7)
    assert (rate.count, rate.of, rate.rate.value) == (3, 10, 0.3)
    # Clopper and Pearson (1934), 3 of 10.
    assert rate.rate.low == pytest.approx(0.0667, abs=1e-4)
    assert rate.rate.high == pytest.approx(0.6525, abs=1e-4)


def test_rows_that_always_err_together_count_as_one() -> None:
    together = rate_of([(8, 8)] * 3 + [(0, 8)] * 7)
    assert (together.count, together.of) == (24, 80)
    assert together.rate == rate_of([(1, 1)] * 3 + [(0, 1)] * 7).rate


def test_rows_that_err_together_at_times_count_as_many_as_their_variance_says() -> None:
    rate = rate_of([(4, 8), (2, 8), (1, 4), (0, 8), (0, 8), (0, 8)]).rate
    events, trials = 7, 44
    squares = sum((hits - events / trials * of) ** 2 for hits, of in [(4, 8), (2, 8), (1, 4)])
    squares += 3 * (events / trials * 8) ** 2
    share = events / trials
    worth = share * (1 - share) / (squares * 6 / 5 / trials**2)
    assert 6 < worth < 44
    low = stats.beta.ppf(0.025, share * worth, (1 - share) * worth + 1)
    high = stats.beta.ppf(0.975, share * worth + 1, (1 - share) * worth)
    assert (rate.low, rate.high) == pytest.approx((low, high), rel=1e-6)


def test_the_interval_covers_the_truth_where_rows_err_together() -> None:
    rng = np.random.default_rng(3)
    truth, trials, covered = 0.05, 400, 0
    for _ in range(trials):
        # Beta-binomial: in most comparisons no row errs, in few many do.
        chances = rng.beta(truth * 0.5, (1 - truth) * 0.5, 150)
        rate = rate_of([(int(count), 8) for count in rng.binomial(8, chances)]).rate
        assert rate.low is not None
        assert rate.high is not None
        covered += rate.low <= truth <= rate.high
    assert covered / trials > 0.92
