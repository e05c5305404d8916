"""Each term of the variance between runs, allocations and rows, by examples worked by hand.

A mean of R runs in A allocations has the variance a²/A + r²/R, where a and r are the deviations
between allocations and between runs (nested analysis of variance: Searle, Casella and McCulloch,
*Variance Components*, 1992, section 3.6). A variance s² of d degrees of freedom is moderated to
(d0·s0² + d·s²)/(d0 + d) (Smyth 2004, equation 6).
"""

import math
import statistics
from collections.abc import Mapping

import pytest
from changing import replace
from statements import known

from gpuscale.analysis.estimates import Term, grouped_log_sample
from gpuscale.analysis.moderation import RunSample, moderated_samples
from gpuscale.analysis.outliers import outlying_allocations
from gpuscale.judge.compare.spread import (
    DECLARED_DF,
    SideSample,
    estimates_spread,
    gain_of,
    largest_spread,
)

Runs = Mapping[str, tuple[float, ...]]
PAIR: Runs = {"a": (1.0, 1.2), "b": (1.1, 1.3)}
"""Four runs in two allocations, of variance 0.02 within them with 2 degrees of freedom."""
LONE: Runs = {"a": (1.0,), "b": (1.1,), "c": (1.3,), "d": (1.0,)}
"""One run in each of four allocations, of mean 1.1 and variance 0.02 with 3."""


def sample(values: Runs, prior: Term | None = None) -> RunSample:
    own = grouped_log_sample(values.values())
    return RunSample(values=values, sample=own, prior=prior)


def side(*samples: RunSample) -> SideSample:
    return SideSample(samples)


def told(variance: float) -> Term:
    """The prior of a run, estimated from other rows."""
    return Term(variance=variance, df=3.0)


def test_the_share_of_unequal_allocations_is_more_than_that_of_equal_ones() -> None:
    # (2/3)² + (1/3)² = 5/9
    assert sample({"a": (1.0, 1.0), "b": (1.0,)}).allocation_share == pytest.approx(5 / 9)
    assert sample(LONE).allocation_share == pytest.approx(1 / 4)
    # An end with fewer allocations has the larger share of the value's.
    assert side(sample(LONE), sample(PAIR)).allocation_share == pytest.approx(1 / 2)


def test_further_runs_leave_the_mean_and_the_variance_of_one_run() -> None:
    before = sample(PAIR, told(0.07))
    # (3·0.07 + 2·0.02)/(3 + 2) = 0.05
    assert before.variance == pytest.approx(0.05)
    grown = side(before, before).with_further_runs(5).samples
    for after in grown:
        assert (after.sample.count, after.sample.df) == (9, 7)
        assert after.sample.mean == pytest.approx(1.15)
        assert after.variance == pytest.approx(0.05)
    # Its own two degrees of freedom and the five of the moderated variance.
    assert grown[0].sample.variance == pytest.approx((2 * 0.02 + 5 * 0.05) / 7)
    assert side(before).with_further_runs(0) == side(before).with_at_least(3) == side(before)
    assert side(before).with_at_least(9) == side(*grown[:1])
    # A single run deviates by what the others tell; where nothing does, by nothing known.
    (lone,) = side(sample({"a": (1.0,)}, told(0.07))).with_further_runs(5).samples
    assert lone.variance == pytest.approx(0.07)
    (unknown,) = side(sample({"a": (1.0,)})).with_further_runs(5).samples
    assert unknown.variance is None


def test_a_row_is_moderated_by_the_other_rows_and_by_its_own_other_side() -> None:
    quiet: Runs = {"a": (0.0, 0.02, 0.04)}
    noisy: Runs = {"a": (0.0, 0.2, 0.4)}
    before, now = moderated_samples({"x": quiet, "y": noisy}, {"x": quiet, "y": noisy})
    # Three values at a distance d have the variance d².
    assert before["x"].sample.variance == pytest.approx(0.02**2)
    # Of y the prior is its own other side, made median-unbiased: of 2 degrees of freedom, 1.3863.
    assert before["y"].prior == now["y"].prior
    assert known(now["y"].prior).variance == pytest.approx(0.2**2 * 2 / (2 * math.log(2)))
    # Of x as well: it excludes the noisy ones, and is moderated as if it were alone.
    alone, _ = moderated_samples({"x": quiet}, {"x": quiet})
    assert before["x"] == now["x"] == alone["x"]
    assert known(now["x"].prior).variance == pytest.approx(0.02**2 * 2 / (2 * math.log(2)))
    # A row that only one side has is moderated by the others alone.
    before, now = moderated_samples({"x": quiet}, {"x": quiet, "new": noisy})
    assert known(now["new"].prior).variance == pytest.approx(0.02**2 / math.log(2))


def nights(*values: float) -> Runs:
    return {f"night{i}": (value,) for i, value in enumerate(values)}


def moderated(**rows: Runs) -> tuple[RunSample, RunSample]:
    """The row x of these nights, and of one run in another."""
    before, now = moderated_samples(rows, {"x": {"now": (0.0,)}})
    return before["x"], now["x"]


def variance_told(**rows: Runs) -> float:
    """The variance of the prior of the row x of these nights."""
    return known(moderated(**rows)[0].prior).variance


def test_one_run_a_night_is_moderated_by_what_the_nights_of_other_rows_tell() -> None:
    calm, wild = nights(0.0, 0.03, 0.06, 0.03), nights(0.0, 0.2, 0.4, 0.2)
    before, now = moderated(x=calm, y=wild)
    # Less their means and what the other row tells of the night they are ±(0.17, 0, −0.17, 0),
    # which holds both rows' deviations: 2 · 0.17² / 2 / 3, made median-unbiased: of 3 degrees of
    # freedom, 2.366.
    prior = known(before.prior)
    assert prior.variance == pytest.approx(0.17**2 / 3 * 3 / 2.366, rel=1e-3)
    # The nights of x deviate by 0.0018/3; (3·s² + 2·s0²)/(3 + 2), 1 + 1/4 times. What allocations
    # are declared to do is in s0² where that is more.
    for deviation, expected in ((0.01, prior.variance), (0.5, 0.25)):
        gain = gain_of(side(before), side(now), deviation=deviation)
        assert gain.variance == pytest.approx((0.0018 + 2 * expected) / 5 * 1.25, rel=1e-6)


def test_a_bad_night_of_one_row_says_little_of_the_nights_of_the_others() -> None:
    calm = nights(0.0, 0.01, 0.02, 0.01)
    sick = nights(0.0, 0.01, 0.7, 0.01)
    healthy = {"x": calm, **{f"y{i}": nights(0.01, 0.0, 0.01, 0.02) for i in range(5)}}
    assert variance_told(**healthy, z=sick) < 2 * variance_told(**healthy)


def test_of_rows_that_are_about_equally_noisy_each_tells_as_much_of_a_night() -> None:
    rows = {"x": (0.0, 0.02, 0.04, 0.02), "y": (0.0, 0.01, 0.02, 0.01), "z": (0.0, 0.04, 0.0, 0.0)}
    means = {row: statistics.fmean(values) for row, values in rows.items()}
    apart = {row: [value - means[row] for value in values] for row, values in rows.items()}

    def deviation(row: str) -> float:
        """The deviation of a row's nights from what the two others tell, median-unbiased."""
        others = zip(*(values for name, values in apart.items() if name != row), strict=True)
        of_nights = map(statistics.fmean, others)
        left = (own - night for own, night in zip(apart[row], of_nights, strict=True))
        return math.sqrt(math.fsum(value**2 for value in left) / (1 + 1 / 2) / 2.366)

    expected = statistics.fmean(map(deviation, "yz")) ** 2
    made = {row: nights(*values) for row, values in rows.items()}
    assert variance_told(**made) == pytest.approx(expected, rel=1e-3)


def test_a_night_that_is_slower_in_all_rows_does_not_widen_any() -> None:
    for slower in (0.0, 0.3):
        rows = (nights(0.0, 0.03, 0.06, 0.03 + slower), nights(0.0, 0.2, 0.4, 0.2 + slower))
        assert variance_told(x=rows[0], y=rows[1]) == pytest.approx(0.012216, rel=1e-3)


def test_a_row_that_is_alone_in_its_nights_tells_nothing_of_runs() -> None:
    alone = nights(0.0, 0.02, 0.04, 0.02)
    elsewhere: Runs = {f"other {name}": values for name, values in alone.items()}
    before, now = moderated(x=alone, y=elsewhere)
    assert before.prior is None
    # Its nights deviate by 0.0008/3, and what they are declared to do is all that is added.
    gain = gain_of(side(before), side(now), deviation=0.01)
    assert gain.variance == pytest.approx((0.0008 + 2 * 0.01**2) / 5 * 1.25, rel=1e-6)


def test_a_speedup_is_of_the_allocations_that_measured_both_ends() -> None:
    on_n = sample({"a": (1.0, 1.2), "b": (3.0,), "c": (5.0,)})
    on_1 = sample({"c": (2.0, 2.4), "a": (0.5,)})
    both = side(on_n, on_1)
    assert both.common_allocations == ("a", "c")
    assert both.in_allocation("a") == pytest.approx(1.1 - 0.5)
    assert both.in_allocation("c") == pytest.approx(5.0 - 2.2)
    assert both.value == pytest.approx((1.0 + 1.2 + 3.0 + 5.0) / 4 - (2.0 + 2.4 + 0.5) / 3)


def test_the_variance_of_runs_is_shared_by_the_runs_of_each_end() -> None:
    ends = side(sample(PAIR), sample({"a": (1.0, 1.2)}))
    assert ends.variance_of_means == pytest.approx(0.02 / 4 + 0.02 / 2)
    assert side(sample(LONE)).variance_of_means == 0.0


def test_a_declared_deviation_is_that_of_a_ratio_only_within_one_allocation() -> None:
    two, three = sample(PAIR), sample({"x": (1.0,), "y": (1.0,), "z": (1.0,)})
    assert side(two).declared_variance(0.1, 0.3) == pytest.approx(0.1**2 / 2)
    assert side(two, two).declared_variance(0.1, 0.3) == pytest.approx(0.1**2 / 2)
    # Of different nodes each end has that of a time.
    assert side(two, three).declared_variance(0.1, 0.3) == pytest.approx(0.3**2 * (1 / 2 + 1 / 3))


def test_an_allocation_is_left_out_beyond_seven_deviations_and_two_percent() -> None:
    # The median is 0, the median distance from it 0.01: far is 7 · 1.4826 · 0.01 = 0.1038.
    values = {"a": 0.01, "b": -0.01, "c": 0.01, "d": -0.01, "e": 0.0}
    values |= {"h": 0.0}
    far = {"f": 0.105, "g": -0.2}
    assert outlying_allocations({**values, **far}) == pytest.approx(far)
    # More than a quarter are another level.
    assert outlying_allocations({**values, "f": 0.2, "g": 0.2, "i": 0.2}) == {}
    assert outlying_allocations({**values, "f": 0.103, "g": -0.103}) == {}
    # Where the others agree, it takes 2%; of fewer than six, none is told from their spread.
    alike = dict.fromkeys("abcde", 1.0)
    assert outlying_allocations({**alike, "f": 1.021}) == pytest.approx({"f": 0.021})
    assert outlying_allocations({**alike, "f": 0.979}) == pytest.approx({"f": -0.021})
    assert outlying_allocations({**alike, "f": 1.019}) == {}
    assert outlying_allocations({**dict.fromkeys("abcd", 1.0), "f": 9.0}) == {}
    sick = side(sample({**{name: (x,) for name, x in alike.items()}, "f": (1.1,)}))
    assert [*sick.usual_means] == ["a", "b", "c", "d", "e"]


def parts(baseline: SideSample, current: SideSample, **declared: float) -> list[Term]:
    return [*known(gain_of(baseline, current, deviation=0.1, **declared).parts)]


def test_few_allocations_have_the_declared_deviation_and_the_spread_of_runs() -> None:
    baseline, current = side(sample(PAIR)), side(sample({"c": (1.9, 2.1, 2.0)}))
    assert gain_of(baseline, current, deviation=0.1).value == pytest.approx(1.15 - 2.0)
    runs, between = parts(baseline, current)
    # r²/R of both, with Welch's degrees of freedom; a² (1/2 + 1/1), as if known for sure.
    of_runs = 0.02 / 4, 0.01 / 3
    assert runs.variance == pytest.approx(sum(of_runs))
    assert runs.df == pytest.approx(sum(of_runs) ** 2 / (of_runs[0] ** 2 / 2 + of_runs[1] ** 2 / 2))
    assert between.variance == pytest.approx(0.1**2 * (1 / 2 + 1))
    assert between.df == math.inf


def test_the_ends_of_a_speedup_from_different_nodes_differ_by_the_deviation_of_times() -> None:
    apart = side(sample(PAIR), sample({"x": (1.0, 1.1)}))
    current = side(sample({"c": (1.9, 2.1)}), sample({"c": (1.0, 1.2)}))
    _, between = parts(apart, current, deviation_apart=0.3)
    assert between.variance == pytest.approx(0.3**2 * (1 / 2 + 1) + 0.1**2)


def test_four_allocations_tell_their_own_spread_beside_the_declared_one() -> None:
    baseline, current = side(sample(LONE, told(0.004))), side(sample({"e": (2.0,)}, told(0.004)))
    gain = gain_of(baseline, current, deviation=0.1)
    assert gain.value == pytest.approx(1.1 - 2.0)
    (between,) = parts(baseline, current)
    # The prior is a² + r²/1 with 2 degrees of freedom: (2·0.014 + 3·0.02)/(2 + 3) = 0.0176.
    assert between.variance == pytest.approx(0.0176 * (1 / 4 + 1))
    assert between.df == 5


def test_tonights_fewer_runs_add_what_the_means_of_allocations_do_not_hold() -> None:
    each = {name: (x - 0.1, x + 0.1) for name, (x,) in LONE.items()}
    baseline, current = side(sample(each)), side(sample({"e": (2.0,)}, told(0.03)))
    between, extra = sorted(parts(baseline, current), key=lambda part: part.df, reverse=True)
    # Two runs an allocation of r² = 0.02: the prior is 0.01 + 0.02/2, their means have 0.02.
    assert between.variance == pytest.approx((2 * 0.02 + 3 * 0.02) / 5 * (1 / 4 + 1))
    # One run tonight, where an allocation of the baseline has two: r² (1/1 − 1/2).
    assert (extra.variance, extra.df) == pytest.approx((0.03 * (1 - 1 / 2), 3))
    as_many = side(sample({"e": (1.92, 2.08)}))
    assert len(parts(baseline, as_many)) == 1
    # As many that differ by twice as much: r² is 0.08 tonight, and 0.02 in the baseline.
    *_, extra = parts(baseline, side(sample({"e": (1.8, 2.2)})))
    assert extra.variance == pytest.approx((0.08 - 0.02) / 2)
    # Of a speedup, more runs on n GPUs make up for nothing that is missing on 1 GPU.
    both = side(sample(each), sample(each))
    more = side(sample({"e": (1.9, 2.0, 2.1)}), sample({"e": (2.0,)}, told(0.03)))
    extra = min(parts(both, more), key=lambda part: part.df)
    assert extra.variance == pytest.approx(0.03 * (1 - 1 / 2))
    # Two allocations tonight: r² (1/2 − 1/2 · 1/2), and a² (1/4 + 1/2).
    two = side(sample({"e": (2.0,), "f": (2.0,)}, told(0.03)))
    between, extra = sorted(parts(baseline, two), key=lambda part: part.df, reverse=True)
    assert between.variance == pytest.approx(0.02 * (1 / 4 + 1 / 2))
    assert extra.variance == pytest.approx(0.03 * (1 / 2 - 1 / 4))


def test_a_spread_of_runs_keeps_three_allocations_at_the_declared_deviation() -> None:
    three = {name: LONE[name] for name in "abc"}
    now = sample({"e": (2.0,)}, told(0.006))
    assert parts(side(sample(three, told(0.006))), side(now))[-1].df == math.inf
    one = side(sample({"a": (1.0,)}))
    assert gain_of(one, side(sample({"e": (2.0,)})), deviation=0.1).parts is None
    # Ends tonight that no allocation has both of are no value of a night.
    both = side(sample(LONE), sample(LONE))
    apart = side(sample({"e": (2.0,)}), sample({"f": (2.0,)}))
    assert gain_of(both, apart, deviation=0.1).parts is None


@pytest.mark.parametrize(("apart", "is_evident"), [(0.04, False), (0.05, True)])
def test_two_allocations_that_evidently_differ_tell_their_own_spread(
    apart: float, is_evident: bool
) -> None:
    runs = {"a": (1.0, 1.01), "b": (1.0 + apart, 1.01 + apart)}
    pair, now = side(sample(runs)), side(sample({"c": (1.0, 1.01)}))
    assert (parts(pair, now)[0].df == 1 + DECLARED_DF) is is_evident
    assert estimates_spread(pair, now) is is_evident
    # The levels of nights are found by their history; and runs that differ as much tell nothing.
    assert not estimates_spread(replace(pair, is_of_nights=True), now)
    noisy = side(sample({name: (low - 0.05, high + 0.05) for name, (low, high) in runs.items()}))
    assert not estimates_spread(noisy, now)


def test_single_runs_of_two_or_three_nights_tell_their_spread_together() -> None:
    few, many = {name: LONE[name] for name in "ab"}, LONE
    before, now = moderated_samples({"x": few, "y": many}, {"x": {"e": (2.0,)}})
    # Two values at a distance of 0.1 have the variance 0.1²/2; four nights tell it by themselves.
    assert before["x"].sample.variance == pytest.approx(0.005)
    assert before["y"].sample.variance is None
    # The declared deviation counts as well: a² (1/2 + 1).
    assert parts(side(before["x"]), side(now["x"]))[-1].variance == pytest.approx(0.01 * 1.5)
    # A second run in any night tells how much runs differ.
    twice = {"x": {"e": (2.0, 2.1)}}
    assert moderated_samples({"x": few}, twice)[0]["x"].sample.variance is None


def test_an_allocation_that_lies_far_from_the_others_counts_neither_in_mean_nor_spread() -> None:
    quiet = {name: (x,) for name, x in zip("abcde", (1.0, 1.01, 0.99, 1.0, 1.0), strict=True)}
    now = side(sample({"n": (1.0,)}, told(0.0)))
    with_sick = gain_of(side(sample({**quiet, "f": (3.0,)}, told(0.0))), now, deviation=0.1)
    without = gain_of(side(sample(quiet, told(0.0))), now, deviation=0.1)
    assert with_sick == without


def spread(baseline: SideSample, current: SideSample) -> tuple[str, object]:
    """What puts most on the variance, and the square of its deviation."""
    statement = largest_spread(baseline, current, gain_of(baseline, current, deviation=0.1))
    deviation = statement.facts["deviation"]
    return statement.code, pytest.approx(math.log1p(deviation) ** 2)


def test_what_puts_most_on_the_variance_is_named_with_its_deviation() -> None:
    wide: Runs = {"a": (0.0, 2.0)}
    slim: Runs = {"c": (1.9, 2.1)}
    # r² of two values at a distance d is d²/2; of the mean of two of them half of that.
    assert spread(side(sample(slim)), side(sample(wide))) == ("runs_differ", 2)
    assert spread(side(sample(wide)), side(sample(slim))) == ("baseline_runs_differ", 2)
    # a² (1 + 1) = 0.02 is more than r²/2 = 0.01; the deviation is that of one allocation.
    assert spread(side(sample({"a": (1.0, 1.2)})), side(sample(slim))) == ("nights_assumed", 0.1**2)


def test_a_few_runs_that_agree_by_chance_are_named_before_an_assumed_deviation() -> None:
    few, wide = {"a": (2.0, 2.001, 1.999)}, {"c": (1.94, 2.06, 1.94, 2.06, 1.94, 2.06)}
    before, now = side(sample(few, told(0.004))), side(sample(wide, told(0.004)))
    gain = gain_of(before, now.with_further_runs(50), deviation=0.02)
    assert largest_spread(before, now, gain, further_runs=50).code != "nights_assumed"
    gain = gain_of(before, now.with_further_runs(50), deviation=0.05)
    assert largest_spread(before, now, gain, further_runs=50).code == "nights_assumed"


def test_other_rows_are_named_where_they_put_most_on_it_and_are_four_times_as_noisy() -> None:
    calm, now = {"a": (1.0, 1.02), "b": (1.03, 1.05)}, {"c": (1.99, 2.01)}
    # 3/5 of the prior over 4 runs, 3/4 over 2, and 0.1² (1/2 + 1) between nights.
    for prior, said in ((0.02, ("nights_assumed", 0.01)), (0.05, ("other_rows_differ", 0.05))):
        assert spread(side(sample(calm, told(prior))), side(sample(now, told(prior)))) == said
    for apart, code in ((0.149, "other_rows_differ"), (0.167, "runs_differ")):
        two = side(sample({"a": (1.0, 1.0 + apart)}, told(0.05)))
        assert spread(two, two)[0] == code


def test_estimated_nights_are_named_by_their_own_deviation_without_the_declared_one() -> None:
    now = side(sample({"e": (2.0,)}, told(0.004)))
    assert spread(side(sample(LONE, told(0.004))), now) == ("nights_differ", 0.02)
    # 0.02 (1/4 + 1) = 0.025 between nights, and less than what a run of tonight deviates by.
    wide = side(sample({"e": (1.9, 2.4)}))
    assert spread(side(sample(dict.fromkeys("abcd", (1.0,)))), wide)[0] == "runs_differ"
    assert spread(side(sample(LONE)), wide) == ("runs_differ", 0.125)


def test_single_runs_of_single_nights_have_no_spread_to_name() -> None:
    alone = side(sample({"a": (1.0,)}))
    assert spread(alone, alone) == ("runs_differ", 0.0)
