"""The statistics and distributions, against scipy, by hand, and by simulation with known truth."""

import itertools
import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import scipy
from scipy import special
from statements import known

from gpuscale.analysis import estimates, probabilities
from gpuscale.analysis.estimates import Sample, Term, difference, log_sample
from gpuscale.analysis.moderation import Moderated, moderated_term, not_above, not_below, priors_of
from gpuscale.analysis.probabilities import benjamini_hochberg, t_probability, t_quantile
from gpuscale.judge.compare.runs_needed import FURTHER_RUNS
from gpuscale.records import Estimate


def _prior_of(*others: Sample) -> Term | None:
    """The prior of a sample without a variance, estimated from these samples."""
    return priors_of([*others, log_sample([0.0])])[-1]


ONE = [0.10, 0.12, 0.11, 0.15, 0.09, 0.13]
OTHER = [0.20, 0.29, 0.14]


def test_welch_difference_agrees_with_scipy() -> None:
    a, b = log_sample(ONE), log_sample(OTHER)
    welch = difference(a.mean - b.mean, [a.term(), b.term()])
    expected = scipy.stats.ttest_ind(ONE, OTHER, equal_var=False, alternative="less")
    interval = scipy.stats.ttest_ind(ONE, OTHER, equal_var=False).confidence_interval(0.95)
    assert welch.p_below_zero() == pytest.approx(expected.pvalue, rel=1e-9)
    assert welch.p_above_zero() == pytest.approx(1 - expected.pvalue, rel=1e-9)
    assert known(welch.parts)[0].df == pytest.approx(expected.df, rel=1e-9)
    assert welch.interval() == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert welch.lower_bound(0.975) == pytest.approx(interval.low)


@pytest.mark.parametrize(("runs", "is_raised"), [(2, False), (3, True), (4, True)])
def test_a_prior_is_raised_to_the_other_sides_spread(runs: int, is_raised: bool) -> None:
    prior, own = Term(variance=1e-6, df=3.0), log_sample([0.0, 0.0, 0.0])
    raised = known(not_below(prior, own, log_sample([0.0, 0.1, 0.2, 0.3][:runs])))
    assert (raised.variance > 0.005, raised.df) == (is_raised, 3.0)
    assert not_below(prior, own, log_sample([0.5])) == prior


def test_a_prior_is_lowered_to_the_bound_that_the_row_itself_puts_on_its_variance() -> None:
    then, now = log_sample([0.0, 0.01, 0.02, 0.01, 0.0, 0.02]), log_sample([0.0, 0.01, 0.03])
    pooled = (known(then.variance) * 5 + known(now.variance) * 2) / 7
    bound = pooled * 7 / scipy.stats.chi2.ppf(0.1, 7)
    far, near = (Term(variance=pooled * ratio, df=3.0) for ratio in (100, 2))
    lowered = known(not_above(far, then, now))
    assert lowered.variance == pytest.approx(bound, rel=0.01)
    assert lowered.df == 3.0
    assert not_above(near, then, now) == near
    wider = known(not_above(far, then, now, excluded=0.01))
    assert wider.variance == pytest.approx(pooled * 7 / scipy.stats.chi2.ppf(0.01, 7), rel=0.05)
    # Two runs tell little, one nothing, and those that are all alike may be rounded.
    for excluded in (0.1, 0.01):
        assert not_above(far, log_sample([0.0, 0.02]), excluded=excluded) == far
    assert not_above(far, log_sample([0.0])) == far
    assert not_above(far, log_sample([0.0] * 6), log_sample([0.0] * 3)) == far
    assert not_above(None, then, now) is None


def test_a_single_run_has_no_variance_and_no_interval() -> None:
    single = log_sample([0.5])
    assert (single.variance, single.df) == (None, 0)
    unknown = difference(0.5, [single.term(), log_sample(ONE).term()])
    assert unknown.interval() is None
    assert unknown.lower_bound() is None
    assert unknown.p_below_zero() is unknown.p_above_zero() is None
    assert not unknown.exponential().has_interval
    assert not Estimate(value=0.5, low=0.4).has_interval
    assert unknown.relative_change().value == pytest.approx(math.e**0.5 - 1)


def test_few_further_runs_are_advised_exactly_and_many_in_round_numbers() -> None:
    assert FURTHER_RUNS[:6] == (1, 2, 3, 4, 5, 6)
    assert FURTHER_RUNS[6:9] == (8, 10, 12)
    assert all(runs % 5 == 0 for runs in FURTHER_RUNS[9:])
    # No more than a third more than are needed.
    pairs = itertools.pairwise(FURTHER_RUNS)
    assert all(more <= (fewer + 1) * 4 / 3 for fewer, more in pairs)


def test_runs_that_are_all_equal_are_even_odds_and_any_change_of_them_is_certain() -> None:
    same = log_sample([0.5, 0.5]).term()
    assert difference(0.0, [same, same]).p_below_zero() == 0.5
    assert difference(-1e-9, [same, same]).p_below_zero() == 0.0
    assert difference(1e-9, [same, same]).p_below_zero() == 1.0


def test_a_declared_variance_counts_as_known_exactly() -> None:
    declared = difference(0.0, [Term(variance=0.01**2, df=math.inf)])
    assert declared.interval() == pytest.approx((-0.0195996, 0.0195996), rel=1e-5)


def test_levels_are_added_in_squares_each_with_its_own_quantile() -> None:
    runs, nights = Term(variance=4e-4, df=2), Term(variance=1e-4, df=math.inf)
    both = estimates.difference_of_levels(-0.1, [runs, nights])
    expected = math.hypot(0.02 * scipy.stats.t.ppf(0.975, 2), 0.01 * scipy.stats.norm.ppf(0.975))
    assert both.half_width(0.975) == pytest.approx(expected)
    alone = estimates.difference_of_levels(-0.1, [runs, Term(variance=0.0, df=math.inf)])
    assert alone.p_below_zero() == pytest.approx(scipy.stats.t.cdf(-5, 2))
    assert estimates.difference_of_levels(0.1, [None, nights]).p_below_zero() is None


@pytest.mark.parametrize("dfs", [(2, math.inf), (0.37, 7), (1, 1), (30, math.inf)])
@pytest.mark.parametrize("ratio", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_the_p_of_levels_inverts_their_half_width(
    dfs: tuple[float, float], ratio: float, scale: float
) -> None:
    variances = scale**2, scale**2 * ratio
    parts = tuple(Term(variance=v, df=df) for v, df in zip(variances, dfs, strict=True))
    for distance in (scale * 8.0, scale * 20.0, scale * 300.0):
        both = estimates.Difference(value=-distance, parts=parts)
        p = known(both.p_below_zero())
        assert 0 < p < 0.5
        if p > 1e-12:
            assert both.half_width(1 - p) == pytest.approx(distance, rel=1e-3)
        assert both.p_above_zero() == pytest.approx(1 - p)


@pytest.mark.parametrize(("distance", "is_bound"), [(10.0, False), (25.0, True), (300.0, True)])
def test_a_p_far_below_all_that_matters_is_an_upper_bound(distance: float, is_bound: bool) -> None:
    parts = (Term(variance=1.0, df=30), Term(variance=1.0, df=math.inf))
    p = estimates.Difference(value=-distance, parts=parts).p_below_zero()
    bound = scipy.stats.t.cdf(-distance / math.sqrt(2), 30)
    assert bool(p == pytest.approx(bound, rel=1e-6, abs=0)) is is_bound


def test_wildly_different_runs_give_a_wide_interval_and_no_overflow() -> None:
    sample = log_sample([math.log(1e-300), math.log(1e300)])
    estimate = difference(sample.mean, [sample.term()]).exponential()
    assert estimate.has_interval
    assert 0 < (estimate.low or 0) < 1 < (estimate.high or 0) < math.inf


def test_variance_within_groups_leaves_out_what_a_group_shares() -> None:
    grouped = estimates.grouped_log_sample([[1.0, 1.2], [5.0, 5.2], [9.0]])
    assert (grouped.count, grouped.df) == (5, 2)
    assert (grouped.mean, grouped.variance) == pytest.approx((21.4 / 5, 0.02))


def test_moderated_variance_by_hand() -> None:
    own = Sample(mean=0.0, variance=4.0, count=3, df=2)
    result = Moderated(sample=own, prior=Term(variance=1.0, df=3.0))
    assert (result.own_part, result.prior_part) == pytest.approx((2 * 4 / 5, 3 * 1 / 5))
    assert result.variance == pytest.approx(2.2)
    assert Moderated(sample=own, prior=None).variance == own.variance
    # To a single run only the prior gives a variance.
    alone = log_sample([0.5])
    assert Moderated(sample=alone, prior=Term(variance=1.0, df=3.0)).variance == 1.0
    assert Moderated(sample=alone, prior=None).variance is None
    assert moderated_term([(Moderated(sample=alone, prior=None), 1.0)]) is None


def test_the_priors_of_several_samples_count_as_one_contribution() -> None:
    own = Sample(mean=0.0, variance=1.0, count=2, df=1)
    leaning = Moderated(sample=own, prior=Term(variance=1.0, df=3.0))
    term = known(moderated_term([(leaning, 0.5), (leaning, 0.5)]))
    assert term.variance == pytest.approx(1.0)
    # A part of 0.75 with 3 degrees of freedom, and two of 0.125 with 1 each.
    assert term.df == pytest.approx(1 / (0.75**2 / 3 + 2 * 0.125**2))


def test_a_prior_that_widens_leaves_the_degrees_of_freedom_of_the_runs_themselves() -> None:
    own = Sample(mean=0.0, variance=1.0, count=3, df=2)
    widened = Moderated(sample=own, prior=Term(variance=30.0, df=1.0))
    term = known(moderated_term([(widened, 0.5), (widened, 0.5)]))
    assert (term.variance, term.df) == pytest.approx(((2 + 30) / 3, 4))
    # A single run has none of its own.
    single = Moderated(sample=log_sample([0.5]), prior=Term(variance=30.0, df=1.0))
    assert known(moderated_term([(widened, 0.5), (single, 1.0)])).df < 2


def test_prior_is_worth_no_more_than_a_median_of_the_others_has() -> None:
    assert known(_prior_of(log_sample([0.0, 0.1]))).df == 0.37
    assert known(_prior_of(log_sample(ONE), log_sample(OTHER), log_sample(ONE))).df == 3
    assert _prior_of(log_sample([1.0])) is None
    assert _prior_of() is None


def test_a_prior_leaves_the_sample_itself_out() -> None:
    spreads = [0.01, 0.02, 0.03, 0.5]
    samples = [log_sample([-spread, 0.0, spread]) for spread in spreads]
    for i, prior in enumerate(priors_of([*samples, log_sample([1.0])])):
        expected = _prior_of(*(sample for j, sample in enumerate(samples) if j != i))
        assert prior == known(expected)
    # The wild one is judged by the quiet ones, and they hardly by it.
    assert known(priors_of(samples)[3]).variance < 0.03**2


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
    normal = probabilities.normal_quantile(0.975)
    assert t_quantile(0.975, df) == normal
    assert t_quantile(0.975, 0.99e7) == pytest.approx(normal, rel=1e-6)


def test_normal_probabilities_agree_with_scipy_also_far_out() -> None:
    for quantile in (-37.0, -8.0, -1.0, 0.0, 2.0):
        probability = t_probability(quantile, math.inf)
        assert probability == pytest.approx(special.ndtr(quantile), rel=1e-12)
        back = probabilities.normal_quantile(probability)
        assert back == pytest.approx(quantile, rel=1e-9, abs=1e-9)


def test_the_ends_of_the_scale_are_infinite_or_as_far_as_a_square_goes() -> None:
    assert probabilities.normal_quantile(0.0) == -math.inf
    assert probabilities.normal_quantile(1.0) == math.inf
    assert t_quantile(0.0, 2) == -1e140
    assert t_quantile(1e-200, 0.37) == -1e140
    assert t_probability(-1e300, 0.37) > 0


def test_chi_squared_medians_agree_with_scipy() -> None:
    for df in (0.5, 1, 2, 3, 5, 17, 300, 2000):
        median = probabilities.chi_squared_median(df)
        assert median == pytest.approx(special.chdtri(df, 0.5), rel=1e-9)


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
    terms = (Term(variance=1e-4, df=df) for df in (2, 5, 50, math.inf))
    losses = [difference(0.0, [term]).detectable_loss() for term in terms]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(losses))
    assert difference(0.0, [None]).detectable_loss() is None


@pytest.mark.parametrize(
    ("analyses", "two_sided", "published_bound"),
    # Jennison and Turnbull, Group Sequential Methods (2000), table 2.1.
    [(2, 0.05, 2.178), (5, 0.05, 2.413), (2, 0.01, 2.772), (5, 0.01, 2.986)],
)
def test_bounds_are_pococks(analyses: int, two_sided: float, published_bound: float) -> None:
    bound = NormalDist().inv_cdf(1 - probabilities.nominal_error(two_sided / 2, 1, analyses))
    assert bound == pytest.approx(published_bound, abs=2e-3)


def test_the_chance_to_cross_a_bound_is_that_of_simulated_means() -> None:
    rng = np.random.default_rng(1)
    sums = rng.normal(size=(200_000, 8)).cumsum(axis=1)[:, 2:]
    crossed = (sums / np.sqrt(np.arange(3, 9)) > 2.0).any(axis=1).mean()
    shares = [runs / 8 for runs in range(3, 9)]
    assert probabilities.crossing_probability(shares, 2.0) == pytest.approx(crossed, abs=0.002)
