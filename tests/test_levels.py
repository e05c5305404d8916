"""Changes of level: the rules one by one, with numbers by hand, and series with known truth."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import scipy
from statements import known

from gpuscale.analysis.estimates import log_sample
from gpuscale.analysis.scaling import throughput_change
from gpuscale.analysis.shifts_and_drifts import (
    REMEMBERED,
    LevelChange,
    departure,
    is_far,
    level_changes,
    levels_beside,
    night_deviation,
    outlying,
    stands_out,
    step_size,
    suspect_nights,
    unrecovered_loss,
)

QUIET = [0.0, 0.001] * 10
"""Nights whose scatter is too small to matter: a step must exceed 1.5 %."""
SMALLEST = math.log(1.015)
NOISE = [0.0, 0.01, -0.004, 0.007, -0.01, 0.003]
SCATTERED = [wave + 0.0001 * night for night, wave in enumerate(NOISE * 12)]


def steps(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return onset and night of discovery of each change, all of which must be steps."""
    found = level_changes(values)
    assert {change.kind for change in found} <= {"step"}
    return [(change.onset, change.seen) for change in found]


def test_nights_deviate_by_what_one_differs_from_the_next() -> None:
    assert night_deviation([]) == night_deviation([3.0]) == 0
    # The differences are 1, 2, 0.5; that of normal noise has a median of 0.6745 · √2 deviations.
    assert night_deviation([0, 1, 3, 3.5]) == pytest.approx(1 / (0.6745 * math.sqrt(2)))


@pytest.mark.parametrize("nights", [4, 6, 8])
def test_after_few_nights_a_step_is_measured_by_their_differences(nights: int) -> None:
    before = SCATTERED[:nights]
    expected = 2.42 * (1 + 6.5 / nights) * night_deviation(before)
    assert step_size(before) == pytest.approx(expected)


@pytest.mark.parametrize("nights", [9, 10, 15, 16, 60, 61, 70])
def test_after_many_nights_a_step_is_measured_by_a_t_test_of_two_nights(nights: int) -> None:
    before = SCATTERED[:nights]
    recent = before[-60:]
    quantile = scipy.stats.t.ppf(1 - 0.002 / len(recent), len(recent) - 1)
    error = statistics.stdev(recent) * math.sqrt(1 / 2 + 1 / min(nights, 15))
    assert step_size(before) == pytest.approx(quantile * error)


def test_a_step_is_never_smaller_than_one_and_a_half_percent() -> None:
    assert step_size(QUIET) == step_size([0.0] * 4) == SMALLEST
    assert not stands_out(QUIET, SMALLEST)
    assert stands_out(QUIET, -1.01 * SMALLEST)


@pytest.mark.parametrize("nights", [4, 8, 9, 10, 15, 30])
def test_two_nights_that_agree_show_a_step_of_that_size(nights: int) -> None:
    before = SCATTERED[:nights]
    level = statistics.median(before) if nights < 9 else statistics.fmean(before[-15:])
    for sign in (1, -1):
        size = sign * step_size(before)
        assert steps([*before, *[level + 0.98 * size] * 2]) == []
        assert steps([*before, *[level + 1.02 * size] * 2]) == [(nights, nights + 1)]


@pytest.mark.parametrize(
    ("departures", "found"),
    [
        # Two nights that disagree must both be far.
        ([1.7, 3.0], (20, 21)),
        ([3.0, 1.7], (20, 21)),
        ([-1.7, -3.0], (20, 21)),
        ([1.63, 3.0], None),
        ([3.0, 1.63], None),
        ([1.7, -3.0], None),
        # Three nights on one side need not.
        ([1.1, 2.5, 1.1], (20, 22)),
        ([-1.1, -2.5, -1.1], (20, 22)),
        ([1.1, 2.5, 0.0], None),
        ([2.5, 1.1, -1.1], None),
        # Of two that agree, their mean counts.
        ([0.6, 1.5], (20, 21)),
        ([0.6, 1.3], None),
    ],
)
def test_nights_that_disagree_show_a_step_if_they_are_far_or_three(
    departures: list[float], found: tuple[int, int] | None
) -> None:
    level = statistics.fmean(QUIET[-15:])
    last = [level + departure * SMALLEST for departure in departures]
    assert steps([*QUIET, *last]) == ([] if found is None else [found])


def test_a_step_is_as_large_as_the_nearer_of_two_nights_or_the_median_of_more() -> None:
    level = statistics.fmean(QUIET[-15:])
    for last in ([0.05, 0.1], [0.1, 0.05], [-0.05, -0.1]):
        # Wherever the level lies.
        for shift in (0.0, 3.0, -3.0):
            (change,) = level_changes([shift + value for value in (*QUIET, *last)])
            assert change.before == pytest.approx(shift + level)
            assert change.change == pytest.approx(math.copysign(0.05, last[0]) - level)
    three = [1.2 * SMALLEST, 2.5 * SMALLEST, 1.3 * SMALLEST]
    (change,) = level_changes([*QUIET, *three])
    # The first of them still counts among the fifteen nights before the last two.
    assert change.change == pytest.approx(three[2] - statistics.fmean([*QUIET, three[0]][-15:]))
    (change,) = level_changes([*QUIET, 0.05, 0.06])
    assert change.change == pytest.approx(0.055 - level)


def test_a_lasting_change_is_shown_by_a_t_test_of_two_groups_of_nights() -> None:
    # Two of them differ from the level by less than it scatters; eight are needed, and no seven.
    (change,) = level_changes([*[0.0, 0.02] * 6, *[0.03, 0.04] * 6])
    assert (change.kind, change.onset, change.seen) == ("step", 12, 19)
    assert (change.before, change.change) == pytest.approx((0.01, 0.025))
    # Faster nights are a change too.
    (change,) = level_changes([*[0.0, -0.02] * 6, *[-0.03, -0.04] * 6])
    assert (change.onset, change.seen) == (12, 19)
    assert change.change == pytest.approx(-0.025)


def test_a_drift_is_what_a_week_is_off_the_best_or_worst_week_before_it() -> None:
    creeping = [0.0015 * night for night in range(40)]
    (first, *_) = level_changes(creeping)
    assert first.kind == "drift"
    assert first.onset == first.seen
    # Medians of weeks that end that night, and in the seventh night.
    assert first.before == pytest.approx(0.0015 * 3)
    assert first.before + first.change == pytest.approx(0.0015 * (first.seen - 3))
    assert first.change > math.log(1.025) > first.change - 0.0015
    # Scatter hides it: three deviations between nights are more than that.
    assert level_changes([value + 0.03 * (i % 2) for i, value in enumerate(creeping)]) == ()


def change(onset: int, before: float, by: float, *, kind: str = "step") -> LevelChange:
    return LevelChange(kind=kind, onset=onset, seen=onset + 1, before=before, change=by)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "lasts"),
    [
        ([], None),
        ([change(5, 0.0, -0.1)], None),
        ([change(5, 0.0, 0.1)], 0),
        ([change(5, 0.0, 0.1), change(9, 0.1, 0.05)], 1),
        # A recovery of more than half ends a loss.
        ([change(5, 0.0, 0.1), change(9, 0.1, -0.04)], 0),
        ([change(5, 0.0, 0.1), change(9, 0.1, -0.05)], None),
        ([change(5, 0.0, 0.1), change(9, 0.1, -0.06)], None),
        ([change(5, 0.2, 0.1), change(9, 0.3, -0.04)], 0),
        ([change(5, 0.2, 0.1), change(9, 0.3, -0.06)], None),
    ],
)
def test_a_loss_lasts_until_most_of_it_is_back(found: list[LevelChange], lasts: int | None) -> None:
    assert unrecovered_loss(found, math.inf) == lasts


def test_throughput_changed_by_the_fifteen_nights_on_both_sides() -> None:
    nights = [*[0.3] * 5, *QUIET, *[0.102, 0.1] * 10, *[0.5] * 5]
    found = [change(5, 0.3, -0.3), change(25, 0.0005, 0.1), change(45, 0.101, 0.4)]
    told = throughput_change(*levels_beside(nights, found, 1, 1))
    before, after = log_sample(QUIET[-15:]), log_sample(([0.102, 0.1] * 10)[:15])
    assert told.value == pytest.approx(math.expm1(before.mean - after.mean))
    assert known(told.low) < told.value
    # Over both changes, and to the last one.
    whole = throughput_change(*levels_beside(nights, found, 1, 2))
    assert whole.value == pytest.approx(math.expm1(before.mean - 0.5))
    first = throughput_change(*levels_beside(nights, found, 0, 0))
    assert first.value == pytest.approx(math.expm1(0.3 - statistics.fmean(QUIET[:15])))


def test_a_drift_changes_throughput_from_its_level_to_the_one_it_reached() -> None:
    found = [change(30, 0.01, 0.03, kind="drift"), change(50, 0.04, 0.02)]
    told = throughput_change(*levels_beside([0.0] * 60, found, 0, 1))
    assert told.value == pytest.approx(math.expm1(-(0.04 + 0.02 - 0.01)))
    assert (told.low, told.high) == (None, None)


STEP = math.log(1.03)
SERIES = 400


def nights(
    rng: random.Random,
    count: int,
    *,
    deviation: float,
    outlying: float = 0.02,
    truth: Callable[[int], float] = lambda _: 0.0,
) -> list[float]:
    """Logarithms of step times; some nights are slower by 8% in the mean."""
    return [
        truth(night)
        + rng.gauss(0, deviation)
        + (rng.expovariate(1 / 0.08) if rng.random() < outlying else 0.0)
        for night in range(count)
    ]


def found_from(begun: int, count: int, seed: int, truth: Callable[[int], float]) -> float:
    """The share of series in which a night from `begun` on shows a change of level."""
    rng = random.Random(seed)
    series = (nights(rng, count, deviation=0.003, truth=truth) for _ in range(SERIES))
    changes = (level_changes(each) for each in series)
    return statistics.fmean(any(each.seen >= begun for each in found) for found in changes)


@pytest.mark.parametrize("deviation", [0.003, 0.005, 0.01, 0.02])
def test_few_rows_that_never_change_are_alarmed_in_sixty_nights(deviation: float) -> None:
    rng = random.Random(1)
    found = (level_changes(nights(rng, 60, deviation=deviation)) for _ in range(SERIES))
    alarms = [any(change.change > 0 for change in changes) for changes in found]
    # 3% are promised; so many of 400 exceed that by chance in one of a hundred trials.
    assert sum(alarms) <= 21


def test_a_step_of_3_percent_is_found_in_two_nights_and_a_drift_before_it_has_cost_4() -> None:
    # 99% are promised; so few of 400 fall short of that by chance in one of a thousand trials.
    assert found_from(30, 32, 2, lambda i: STEP if i >= 30 else 0.0) >= 0.97
    assert found_from(30, 40, 3, lambda i: 0.004 * max(0, i - 29)) >= 0.98
    assert found_from(30, 70, 4, lambda i: 0.001 * max(0, i - 29)) >= 0.98


def test_the_onset_of_a_step_is_the_night_that_began_it() -> None:
    rng = random.Random(4)
    step: dict[str, Any] = {"outlying": 0.0, "truth": lambda i: STEP if i >= 30 else 0.0}
    series = (nights(rng, 40, deviation=0.003, **step) for _ in range(SERIES))
    changes = (level_changes(each) for each in series)
    assert statistics.fmean(change.onset == 30 for (change,) in changes) >= 0.95


def test_a_single_night_stands_out_and_is_no_change() -> None:
    series = [0.001, -0.001] * 10
    assert level_changes([*series, 0.2, *series]) == ()
    last = departure(series, 0.2)
    assert last == pytest.approx(0.2)
    assert stands_out(series, 0.2)
    assert not stands_out(series, 0.01)
    assert departure([], 0.2) is None


def test_a_night_stands_out_from_the_fifth_on_and_a_level_changes_from_the_sixth_on() -> None:
    assert not stands_out([0.0] * 3, 0.5)
    assert stands_out([0.0] * 4, 0.5)
    assert not level_changes([0.0] * 3 + [0.5] * 2)
    assert level_changes([0.0] * 4 + [0.5] * 2)


def test_nights_that_lie_far_are_outlying_unless_they_are_more_than_a_quarter() -> None:
    # Nights that differ by 2% from one to the next deviate by 2.1%: four of these are 8.4%.
    usual = [0.0, 0.02] * 8
    assert outlying([*usual, 0.11]) == (16,)
    assert outlying([*usual, 0.09]) == ()
    assert outlying([0.0, 0.0, 0.5, 0.0, 0.001, 0.0]) == (2,)
    assert outlying([0.0, 0.0, 0.5, 0.0, 0.001, 0.5]) == ()
    assert outlying([math.log(rate) for rate in (251, 261, 309, 582, 576, 586)]) == ()


def test_a_night_is_far_by_the_differences_of_all_remembered_nights() -> None:
    values = [0.0]
    for night in range(REMEMBERED):
        step = 0.1 if night <= REMEMBERED // 2 else 0.01
        values.append(values[-1] + (step if night % 2 else -step))
    # Their median is 10%; without the first one it would be 5.5%.
    assert not is_far([5.0, *values], 0.3)
    assert is_far([5.0, *values], 0.5)


def test_a_slow_recovery_from_a_loss_is_a_change_too() -> None:
    # Throughput 100 for 15 nights, 96 for 15, then in 45 nights slowly to 101, and 10 of that.
    rng = random.Random(7)
    last = []
    for _ in range(SERIES // 4):
        rates = [100.0] * 15 + [96.0] * 15 + [96 + i / 9 for i in range(1, 46)] + [101.0] * 10
        series = [rng.gauss(0, 0.003) - math.log(rate) for rate in rates]
        changes = level_changes(series)
        last.append(bool(changes) and changes[-1].change < 0)
    # Of losses alone and of steps for the better, 17 of 100.
    assert statistics.fmean(last) >= 0.95


def test_last_nights_that_may_be_slower_are_suspect_before_they_are_a_step() -> None:
    level = [0.0, 0.01, -0.01, 0.01, -0.01]
    assert suspect_nights([*level, 0.12]) == suspect_nights([0.0, 0.001, 0.0, 0.001, 0.12]) == 1
    assert suspect_nights([*level, 0.12, 0.15, 0.11]) == 3
    assert suspect_nights([*level, 0.12, 0.0, 0.01]) == 0
    # Faster ones are not, nor fewer than four nights before them, nor a loss within the margin.
    assert suspect_nights([*level, -0.12]) == 0
    assert suspect_nights([0.0, 0.0, 0.0, 0.12]) == 0
    assert suspect_nights([0.0, 0.001, 0.0, 0.001, 0.019]) == 0
