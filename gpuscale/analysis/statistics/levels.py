"""Distinguish real changes of level in a series of nights from scatter.

Values are logarithms. A single night proves nothing, so a change is reported only if two successive
nights are off the level and agree, or are far off it, or three are off it on the same side; or if
at least three nights differ from all earlier ones by a t test; or if the median of the latest week
has moved away from the best or worst week since the last change, which finds slow drifts whose
steps are too small for the other rules. The thresholds were set by simulation
(docs/evidence/rates.md has the rates, tests/test_levels.py checks them).
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from gpuscale.analysis.statistics.distributions import t_quantile

Kind = Literal["step", "drift"]

REMEMBERED = 15
"""Maximum number of preceding nights whose median is taken as the level."""
FEWEST_NIGHTS = 4
"""Minimum number of nights on a level before a change from it can be detected."""
_SMALLEST_STEP = math.log(1.015)
_STEP_ALARMS = 0.002
"""Tail probability of the test of two nights, divided by the number of nights before them, so that
a long series gets few further chances of a false alarm."""
_FAR = 5 / 3
"""Factor on the smallest step if the two nights disagree, since one of them may be an outlier."""
_FEW_NIGHTS = 9
"""Below this number of nights, a change among them could hide in their mean and deviation, and the
quantile of t would be too large; medians are used then."""
_FEW_DEVIATIONS = 2.42
_OF_FEW_NIGHTS = 6.5
"""The smallest step from few nights, in deviations: `_FEW_DEVIATIONS` * (1 + this / nights)."""
_FEWEST_LASTING = 3
"""Minimum number of nights on a new level for the t test."""
_LASTING_CONFIDENCE = 1 - 1e-5
"""One-sided confidence of the t test; high, since every night tests each possible onset again."""
_SUSPECT_CONFIDENCE = 0.99
"""Confidence sufficient to exclude nights from the reference of later nights."""
_SUSPECT_LOSS = math.log(1.02)
_WEEK = 7
_SMALLEST_DRIFT = math.log(1.025)
_DRIFT_DEVIATIONS = 3.0
_OUTLYING_DEVIATIONS = 4.0
_OF_DEVIATION = 60
"""Maximum number of recent nights from which the deviation between nights is estimated."""
_DEVIATION_OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""Median absolute difference between successive values of normal noise, in standard deviations."""
_ENOUGH_TO_EXCLUDE = 6
"""Minimum number of allocations for which outliers are sought."""
_MOST_EXCLUDED = 0.25
"""Largest fraction of nights or allocations that can be outliers; more would be another level."""
_OUTLYING_FAR = 7.0
"""Distance from the median, in standard deviations, beyond which an allocation is an outlier."""
_OUTLYING_NEAREST = 0.02
DEVIATION_OF_MEDIAN = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A lasting change in the level of a time series of nights."""

    kind: Kind
    onset: int
    """Index of the first night on the new level; for a drift, of the night that revealed it."""
    seen: int
    """Index of the night that revealed the change."""
    before: float
    """The former level."""
    change: float
    """New level minus former level."""


def night_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of nights about their level; 0 for fewer than two nights.

    Single outliers and slow drifts hardly affect the result.
    """
    differences = [abs(now - before) for before, now in itertools.pairwise(values)]
    return statistics.median(differences) / _DEVIATION_OF_DIFFERENCES if differences else 0.0


def level_changes(values: Sequence[float]) -> tuple[LevelChange, ...]:
    """Return the level changes of a series in the order in which the nights revealed them.

    Later nights never alter earlier findings, so a change that was once reported stays reported.
    """
    ends = range(1, len(values) + 1)
    weeks = [statistics.median(values[max(0, end - _WEEK) : end]) for end in ends]
    found: list[LevelChange] = []
    begin = 0
    for tonight in range(len(values)):
        if tonight - 1 - begin < FEWEST_NIGHTS:
            continue
        change = _step(values, begin, tonight) or _lasting_step(values, begin, tonight)
        if change is None:
            deviation = night_deviation(values[max(begin, tonight - _OF_DEVIATION) : tonight + 1])
            # The week of an index ends with that night; no week starts before the last change.
            change = _drift(weeks[begin + _WEEK - 1 : tonight + 1], tonight, deviation)
        if change is not None:
            found.append(change)
            begin = change.onset
    return tuple(found)


def departure(before: Sequence[float], night: float) -> float | None:
    """Return `night` minus the mean of `before` without outliers; None if `before` is empty."""
    return night - statistics.fmean(_usual(before)) if before else None


def _usual(values: Sequence[float]) -> list[float]:
    """Return the values without outliers."""
    named = {str(number): value for number, value in enumerate(values)}
    far = outlying_allocations(named)
    return [value for name, value in named.items() if name not in far]


def stands_out(level: Sequence[float], departure: float) -> bool:
    """Return True if a second night with the same departure would prove a change of level."""
    return len(level) >= FEWEST_NIGHTS and abs(departure) > _step_size(level)


def is_far(values: Sequence[float], departure: float) -> bool:
    """Return True if a departure is large compared with the scatter of the latest nights.

    Unlike `stands_out`, this makes no allowance for a small number of nights.
    """
    return abs(departure) > _nearest_outlying(values[-REMEMBERED - 1 :])


def outlying(values: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of outliers among the nights of one level; empty if they are too many."""
    level, far = statistics.median(values), _nearest_outlying(values)
    found = tuple(i for i, value in enumerate(values) if abs(value - level) > far)
    return found if _are_few(found, values) else ()


def _nearest_outlying(values: Sequence[float]) -> float:
    return max(_SMALLEST_STEP, _OUTLYING_DEVIATIONS * night_deviation(values))


def outlying_allocations(values: Mapping[str, float]) -> dict[str, float]:
    """Return the signed distance of each outlying allocation from the median, by name.

    Were outliers included, one bad night could widen the spread and hide a loss in all others.
    """
    # `outlying` relies on the order of nights, and would exclude 3 to 9 times as many.
    if len(values) < _ENOUGH_TO_EXCLUDE:
        return {}
    middle = statistics.median(values.values())
    apart = {name: value - middle for name, value in values.items()}
    usual = DEVIATION_OF_MEDIAN * statistics.median(map(abs, apart.values()))
    far = max(_OUTLYING_NEAREST, _OUTLYING_FAR * usual)
    found = {name: value for name, value in apart.items() if abs(value) > far}
    return found if _are_few(found, values) else {}


def _are_few(outlying: Sized, values: Sized) -> bool:
    return len(outlying) <= _MOST_EXCLUDED * len(values)


def _step_size(before: Sequence[float]) -> float:
    """Smallest departure of the mean of two nights from the earlier nights' level that is a step.

    The median of differences, which needs no exclusion of outliers, varies as much as the standard
    deviation of a third of the nights.
    """
    nights = min(len(before), REMEMBERED)
    if len(before) < _FEW_NIGHTS:
        few = _FEW_DEVIATIONS * (1 + _OF_FEW_NIGHTS / nights)
        return max(_SMALLEST_STEP, few * night_deviation(before))
    usual = _usual(before[-_OF_DEVIATION:])
    quantile = t_quantile(1 - _STEP_ALARMS / len(usual), len(usual) - 1)
    error = statistics.stdev(usual) * math.sqrt(1 / 2 + 1 / nights)
    return max(_SMALLEST_STEP, quantile * error)


def _step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """Find a step from the level that began at `begin` if the last two or three nights show one."""
    first = max(begin, tonight - 1 - REMEMBERED)
    before = values[first : tonight - 1]
    is_few = len(before) < _FEW_NIGHTS
    level = statistics.median(before) if is_few else statistics.fmean(_usual(before))
    beyond = _step_size(values[begin : tonight - 1])
    last = [value - level for value in values[max(begin, tonight - 2) : tonight + 1]]
    departed = abs(statistics.fmean(last[-2:])) if not is_few else min(map(abs, last[-2:]))
    agree = abs(last[-1] - last[-2]) <= beyond
    if not (
        (agree and departed > beyond)
        or _all_beyond(last[-2:], _FAR * beyond)
        or _all_beyond(last, beyond)
    ):
        return None

    def left_over(onset: int) -> float:
        parts = (values[first:onset], values[onset : tonight + 1])
        return math.fsum(abs(v - statistics.median(part)) for part in parts for v in part)

    # Two nights are enough to start a level, so a level may also end after two nights.
    onset = min(range(first + 2, tonight), key=left_over)
    reached = values[onset : tonight + 1]
    # If two nights differ, the one further away may be outlying.
    is_sure = agree or len(reached) > 2
    after = statistics.median(reached) if is_sure else min(reached, key=lambda v: abs(v - level))
    return LevelChange(kind="step", onset=onset, seen=tonight, before=level, change=after - level)


def _all_beyond(departures: Sequence[float], limit: float) -> bool:
    """True if all departures are larger than the limit, on the same side of the level."""
    return min(departures) > limit or max(departures) < -limit


def _lasting_step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """Find a step by a t test between two successive groups of nights up to `tonight`."""
    first = max(begin, tonight + 1 - REMEMBERED - _FEWEST_LASTING)
    level = values[first : tonight + 1]
    splits = [
        (spread, split)
        for split, change, spread, error in _splits(level, _FEWEST_LASTING)
        if abs(change)
        > max(_SMALLEST_STEP, error * t_quantile(_LASTING_CONFIDENCE, len(level) - 2))
    ]
    if not splits:
        return None
    _, split = min(splits)
    before, after = statistics.median(level[:split]), statistics.median(level[split:])
    onset = first + split
    return LevelChange(kind="step", onset=onset, seen=tonight, before=before, change=after - before)


def suspect_nights(level: Sequence[float]) -> int:
    """Return how many of the latest nights are probably slower than the nights before them.

    The next night must not be compared with such nights, or a gradual loss would hide itself.
    """
    splits = [
        (spread, len(level) - split)
        for split, change, spread, error in _splits(level, 1)
        if change > max(_SUSPECT_LOSS, error * t_quantile(_SUSPECT_CONFIDENCE, len(level) - 2))
    ]
    return min(splits)[1] if splits else 0


def _splits(level: Sequence[float], fewest: int) -> Iterator[tuple[int, float, float, float]]:
    """Yield each split in two: index, difference of means, residual squares, standard error."""
    count = len(level)
    if count < FEWEST_NIGHTS + fewest:
        return
    middle = statistics.fmean(level)
    sums = list(itertools.accumulate(value - middle for value in level))
    squares = math.fsum((value - middle) ** 2 for value in level)
    for split in range(FEWEST_NIGHTS, count - fewest + 1):
        before, after = sums[split - 1] / split, -sums[split - 1] / (count - split)
        spread = max(0.0, squares - before**2 * split - after**2 * (count - split))
        error = math.sqrt(spread / (count - 2) * (1 / split + 1 / (count - split)))
        yield split, after - before, spread, error


def _drift(weeks: Sequence[float], tonight: int, deviation: float) -> LevelChange | None:
    """Find a slow change from the best or worst earlier week to the latest week."""
    earlier = weeks[:-_WEEK]
    if not earlier:
        return None
    before = max(min(earlier), max(earlier), key=lambda week: abs(weeks[-1] - week))
    change = weeks[-1] - before
    if abs(change) <= max(_SMALLEST_DRIFT, _DRIFT_DEVIATIONS * deviation):
        return None
    return LevelChange(kind="drift", onset=tonight, seen=tonight, before=before, change=change)
