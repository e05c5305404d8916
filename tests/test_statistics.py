"""The statistics, against scipy.stats, by hand, and by simulation with known truth."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from gpuscale.statistics import (
    Prior,
    Sample,
    Term,
    benjamini_hochberg,
    detectable_loss,
    difference,
    grouped_log_sample,
    log_sample,
    moderated,
    prior_of,
)

ONE = [0.10, 0.12, 0.11, 0.15, 0.09, 0.13]
OTHER = [0.20, 0.29, 0.14]


def test_welch_difference_agrees_with_scipy() -> None:
    a, b = log_sample(ONE), log_sample(OTHER)
    welch = difference(a.mean - b.mean, [a.term(), b.term()])
    expected = stats.ttest_ind(ONE, OTHER, equal_var=False, alternative="less")
    interval = stats.ttest_ind(ONE, OTHER, equal_var=False).confidence_interval(0.95)
    assert welch.p_below_zero() == pytest.approx(expected.pvalue, rel=1e-9)
    assert welch.p_above_zero() == pytest.approx(1 - expected.pvalue, rel=1e-9)
    assert welch.df == pytest.approx(expected.df, rel=1e-9)
    assert welch.interval() == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_one_sided_bound_is_the_end_of_the_two_sided_90_percent_interval() -> None:
    a, b = log_sample(ONE), log_sample(OTHER)
    welch = difference(a.mean - b.mean, [a.term(), b.term()])
    interval = welch.interval(0.90)
    assert interval is not None
    assert welch.lower_bound(0.95) == pytest.approx(interval[0])


def test_a_single_run_has_no_variance_and_no_interval() -> None:
    single = log_sample([0.5])
    assert single.variance is None
    assert single.df == 0
    unknown = difference(0.5, [single.term(), log_sample(ONE).term()])
    assert unknown.interval() is None
    assert unknown.p_below_zero() is None
    assert unknown.p_above_zero() is None
    assert unknown.lower_bound() is None
    assert not unknown.exponential().has_interval
    assert unknown.relative_change().value == pytest.approx(math.e**0.5 - 1)
    assert detectable_loss(unknown) is None


def test_a_declared_variance_counts_as_known_exactly() -> None:
    declared = difference(0.0, [Term(variance=0.01**2, df=math.inf)])
    assert math.isinf(declared.df)
    assert declared.interval() == pytest.approx((-0.0195996, 0.0195996), rel=1e-5)
    sample = log_sample(ONE)
    mixed = difference(0.0, [sample.term(), Term(variance=1.0, df=math.inf)])
    assert mixed.df > 1e6


def test_a_share_of_nothing_adds_nothing_even_where_the_variance_is_unknown() -> None:
    assert difference(0.1, [log_sample([1.0]).term(0.0)]).variance == 0


def test_no_spread_at_all_is_certain() -> None:
    certain = difference(-0.1, [log_sample([1.0, 1.0]).term()])
    assert certain.p_below_zero() == 0
    assert certain.p_above_zero() == 1
    assert certain.interval() == (-0.1, -0.1)
    assert difference(0.0, [log_sample([1.0, 1.0]).term()]).p_below_zero() == 0.5


def test_wildly_different_runs_give_a_wide_interval_and_no_overflow() -> None:
    sample = log_sample([math.log(1e-300), math.log(1e300)])
    estimate = difference(sample.mean, [sample.term()]).exponential()
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 < estimate.low < 1 < estimate.high < math.inf


def test_variance_within_groups_leaves_out_what_a_group_shares() -> None:
    grouped = grouped_log_sample([[1.0, 1.2], [5.0, 5.2], [9.0]])
    assert grouped.variance == pytest.approx(0.02)
    assert grouped.df == 2
    assert grouped.count == 5
    assert grouped.mean == pytest.approx(21.4 / 5)


def test_moderated_variance_by_hand() -> None:
    own = Sample(mean=0.0, variance=4.0, count=3, df=2)
    result = moderated(own, Prior(variance=1.0, df=3.0))
    assert result.variance == pytest.approx((3 * 1 + 2 * 4) / 5)
    assert result.df == 5
    assert moderated(own, None) == own


def test_the_prior_gives_a_single_run_a_variance() -> None:
    result = moderated(log_sample([0.5]), Prior(variance=1.0, df=3.0))
    assert result.variance == 1.0
    assert result.df == 3


def test_prior_is_worth_no_more_than_the_others_have() -> None:
    few = prior_of([log_sample([0.0, 0.1])])
    many = prior_of([log_sample(ONE), log_sample(OTHER)])
    assert few is not None
    assert many is not None
    assert (few.df, many.df) == (1, 3)
    assert prior_of([log_sample([1.0])]) is None
    assert prior_of([]) is None


def test_prior_deviation_has_the_right_median_also_from_few_runs() -> None:
    rng = np.random.default_rng(1)
    others = [log_sample(values) for values in rng.normal(0, 0.02, (4000, 3)).tolist()]
    prior = prior_of(others)
    assert prior is not None
    assert math.sqrt(prior.variance) == pytest.approx(0.02, rel=0.03)


def test_benjamini_hochberg_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    probabilities = [0.001, 0.03, 0.03, *rng.uniform(0, 1, 20).tolist()]
    expected = stats.false_discovery_control(probabilities)
    assert benjamini_hochberg(probabilities) == pytest.approx(tuple(expected))
    assert benjamini_hochberg([]) == ()
    assert benjamini_hochberg([0.2]) == (0.2,)


@pytest.mark.parametrize("runs", [2, 3, 6])
def test_intervals_cover_the_truth_in_95_of_100(runs: int) -> None:
    rng = np.random.default_rng(runs)
    trials = 3000
    covered = 0
    for values in rng.normal(-3.0, 0.01, (trials, runs)).tolist():
        sample = log_sample(values)
        interval = difference(sample.mean, [sample.term()]).interval()
        assert interval is not None
        covered += interval[0] <= -3.0 <= interval[1]
    assert covered / trials == pytest.approx(0.95, abs=0.015)


def _finds_a_loss(moderate: bool, trials: int = 400) -> float:
    """How often 2 runs against 2 show a 4% loss at 0.5% noise, with 5 other entries."""
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(trials):
        others = [log_sample(values) for values in rng.normal(0, 0.005, (5, 3)).tolist()]
        before = log_sample(rng.normal(0, 0.005, 2).tolist())
        now = log_sample(rng.normal(0.04, 0.005, 2).tolist())
        if moderate:
            before, now = (moderated(sample, prior_of(others)) for sample in (before, now))
        p = difference(before.mean - now.mean, [before.term(), now.term()]).p_below_zero()
        found += p is not None and p < 0.01
    return found / trials


def test_moderated_variance_makes_two_runs_usable() -> None:
    assert _finds_a_loss(moderate=False) < 0.5
    assert _finds_a_loss(moderate=True) > 0.9


def test_a_detectable_loss_is_found_19_times_in_20() -> None:
    rng = np.random.default_rng(4)
    deviation, trials = 0.01, 4000
    known = difference(0.0, [Term(variance=deviation**2, df=math.inf)])
    loss = detectable_loss(known)
    assert loss is not None
    p = stats.norm.cdf(rng.normal(math.log1p(-loss), deviation, trials) / deviation)
    assert np.mean(p < 0.01) == pytest.approx(0.95, abs=0.015)


def test_no_loss_within_the_margin_is_detectable() -> None:
    sharp = difference(0.0, [Term(variance=1e-12, df=math.inf)])
    assert detectable_loss(sharp, margin=0.02) == pytest.approx(0.02, abs=1e-4)


def test_fewer_degrees_of_freedom_detect_less() -> None:
    losses = [
        detectable_loss(difference(0.0, [Term(variance=1e-4, df=df)]))
        for df in (2, 5, 50, math.inf)
    ]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(losses))
