"""Changes of level in series of nights, by simulation with known truth."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpuscale.analysis.level_changes import (
    REMEMBERED,
    departure,
    is_far,
    level_changes,
    outlying,
    stands_out,
    suspect_nights,
)

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


def share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def found_from(begun: int, count: int, seed: int, truth: Callable[[int], float]) -> float:
    """The share of series in which a night from `begun` on shows a change of level."""
    rng = random.Random(seed)
    series = (nights(rng, count, deviation=0.003, truth=truth) for _ in range(SERIES))
    return share([any(change.seen >= begun for change in level_changes(each)) for each in series])


@pytest.mark.parametrize("deviation", [0.003, 0.005, 0.01, 0.02])
def test_few_rows_that_never_change_are_alarmed_in_sixty_nights(deviation: float) -> None:
    rng = random.Random(1)
    alarms = [
        any(change.change > 0 for change in level_changes(nights(rng, 60, deviation=deviation)))
        for _ in range(SERIES)
    ]
    # 3% are promised; so many of 400 exceed that by chance in one of a hundred trials.
    assert sum(alarms) <= 21


def test_a_step_of_three_percent_is_found_within_two_nights() -> None:
    # 99% are promised; so few of 400 fall short of that by chance in one of a thousand trials.
    assert found_from(30, 32, 2, lambda i: STEP if i >= 30 else 0.0) >= 0.97


def test_a_drift_is_found_before_it_has_cost_four_percent() -> None:
    assert found_from(30, 40, 3, lambda i: 0.004 * max(0, i - 29)) >= 0.98
    assert found_from(30, 70, 4, lambda i: 0.001 * max(0, i - 29)) >= 0.98


def test_the_onset_of_a_step_is_the_night_that_began_it() -> None:
    rng = random.Random(4)
    step: dict[str, Any] = {"outlying": 0.0, "truth": lambda i: STEP if i >= 30 else 0.0}
    series = (nights(rng, 40, deviation=0.003, **step) for _ in range(SERIES))
    changes = (level_changes(each) for each in series)
    assert share([change.onset == 30 for (change,) in changes]) >= 0.95


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
    assert share(last) >= 0.95


def test_last_nights_that_may_be_slower_are_suspect_before_they_are_a_step() -> None:
    level = [0.0, 0.01, -0.01, 0.01, -0.01]
    assert suspect_nights([*level, 0.12]) == 1
    assert suspect_nights([*level, 0.12, 0.15, 0.11]) == 3
    assert suspect_nights([*level, 0.12, 0.0, 0.01]) == 0
    # Faster ones are not, nor fewer than four nights before them, nor a loss within the margin.
    assert suspect_nights([*level, -0.12]) == 0
    assert suspect_nights([0.0, 0.0, 0.0, 0.12]) == 0
    assert suspect_nights([0.0, 0.001, 0.0, 0.001, 0.019]) == 0
