"""Levels of a series of nights: real changes of level, apart from scatter.

Values are logarithms. Single nights may be anywhere, so a change is believed only if two successive
nights are beyond the level and agree, or are far beyond it, or three are beyond it in any way; or
if three and more differ from all nights before them by a t test; or if the median of a week has
moved away from the best or worst week since the last change, which finds slow drifts whose steps
are too small for the other rules. The limits were set by simulation (docs/evidence/rates.md has the
rates, tests/test_levels.py checks them).
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
"""Nights before tonight whose median is the level."""
FEWEST_NIGHTS = 4
"""Nights that a level needs before a change from it can be found."""
_SMALLEST_STEP = math.log(1.015)
_STEP_DEVIATIONS = 2.42
_FAR = 5 / 3
"""Factor by which two nights must be further away if they disagree, since one may be outlying."""
_OF_FEW_NIGHTS = 6.5
"""A few nights determine their level and deviation badly: the step grows by this over their
number."""
_FEWEST_LASTING = 3
"""Nights on a new level that the t test needs."""
_LASTING_CONFIDENCE = 1 - 1e-5
"""One-sided; each night repeats the test for every night on which the level may have begun."""
_SUSPECT_CONFIDENCE = 0.99
"""Confidence for nights that are only excluded from the reference of later nights."""
_SUSPECT_LOSS = math.log(1.02)
_WEEK = 7
_SMALLEST_DRIFT = math.log(1.025)
_DRIFT_DEVIATIONS = 3.0
_OUTLYING_DEVIATIONS = 4.0
_OF_DEVIATION = 60
"""The number of latest nights that determine the deviation between nights."""
_DEVIATION_OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""Median absolute difference of successive values of normal noise, over their deviation."""
_ENOUGH_TO_EXCLUDE = 6
"""Allocations from which on an outlying one can be told from their spread."""
_MOST_EXCLUDED = 0.25
"""Largest part of nights or allocations that may be outlying: more are another level."""
_OUTLYING_FAR = 7.0
"""Distance in median absolute deviations beyond which an allocation is outlying."""
_OUTLYING_NEAREST = 0.02
_DEVIATION_OF_MEDIAN = 1.4826
"""Standard over median absolute deviation of normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A lasting change of a series to another level."""

    kind: Kind
    onset: int
    """Index of the first night on the new level; for a drift, of the night that showed it."""
    seen: int
    """Index of the night that showed it."""
    before: float
    """The former level."""
    change: float
    """Difference of the two levels."""


def night_deviation(values: Sequence[float]) -> float:
    """Standard deviation of one night about its level; single nights and drifts hardly affect it.

    It is 0 for fewer than two nights.
    """
    differences = [abs(now - before) for before, now in itertools.pairwise(values)]
    return statistics.median(differences) / _DEVIATION_OF_DIFFERENCES if differences else 0.0


def level_changes(values: Sequence[float]) -> tuple[LevelChange, ...]:
    """The changes of level of a series, in order, as each night showed them.

    Each night is judged by earlier nights alone, so that a statement about a night stays true.
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
    """Distance of a night from the nights that it is compared with; None if there are none."""
    if not before:
        return None
    values = {str(number): value for number, value in enumerate(before)}
    far = outlying_allocations(values)
    return night - statistics.fmean(value for name, value in values.items() if name not in far)


def stands_out(level: Sequence[float], departure: float) -> bool:
    """True if a second night with the same departure from the level would be a step."""
    return len(level) >= FEWEST_NIGHTS and abs(departure) > _step_size(level)


def is_far(values: Sequence[float], departure: float) -> bool:
    """True if a departure is larger than the usual differences between the last of these nights.

    With few nights it need not stand out: they cannot show whether it is outlying.
    """
    return abs(departure) > _nearest_outlying(values[-REMEMBERED - 1 :])


def outlying(values: Sequence[float]) -> tuple[int, ...]:
    """Indices of the nights that are far from the others of their level."""
    level, far = statistics.median(values), _nearest_outlying(values)
    found = tuple(i for i, value in enumerate(values) if abs(value - level) > far)
    return found if _are_few(found, values) else ()


def _nearest_outlying(values: Sequence[float]) -> float:
    return max(_SMALLEST_STEP, _OUTLYING_DEVIATIONS * night_deviation(values))


def outlying_allocations(values: Mapping[str, float]) -> dict[str, float]:
    """Outlying allocations, with their distance above the others.

    One bad night would widen the spread until it hides a loss that all the other nights show.
    """
    # Unlike `outlying`, which uses the order of nights and excludes 3 to 9 times as many.
    if len(values) < _ENOUGH_TO_EXCLUDE:
        return {}
    middle = statistics.median(values.values())
    apart = {name: value - middle for name, value in values.items()}
    usual = _DEVIATION_OF_MEDIAN * statistics.median(map(abs, apart.values()))
    far = max(_OUTLYING_NEAREST, _OUTLYING_FAR * usual)
    found = {name: value for name, value in apart.items() if abs(value) > far}
    return found if _are_few(found, values) else {}


def _are_few(outlying: Sized, values: Sized) -> bool:
    return len(outlying) <= _MOST_EXCLUDED * len(values)


def _step_size(before: Sequence[float]) -> float:
    """The smallest departure from the level of these nights that can be a step."""
    few = 1 + _OF_FEW_NIGHTS / min(len(before), REMEMBERED)
    return max(_SMALLEST_STEP, _STEP_DEVIATIONS * few * night_deviation(before[-_OF_DEVIATION:]))


def _step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """The step away from the level that began at `begin`, shown by tonight and last night."""
    first = max(begin, tonight - 1 - REMEMBERED)
    level = statistics.median(values[first : tonight - 1])
    beyond = _step_size(values[begin : tonight - 1])
    last = [value - level for value in values[max(begin, tonight - 2) : tonight + 1]]
    agree = abs(last[-1] - last[-2]) <= beyond
    if not (
        _all_beyond(last[-2:], beyond if agree else _FAR * beyond) or _all_beyond(last, beyond)
    ):
        return None

    def left_over(onset: int) -> float:
        parts = (values[first:onset], values[onset : tonight + 1])
        return math.fsum(abs(v - statistics.median(part)) for part in parts for v in part)

    # Two nights were enough to begin a level, so a short one may end after them.
    onset = min(range(first + 2, tonight), key=left_over)
    reached = values[onset : tonight + 1]
    # If two nights differ, the one further away may be outlying.
    is_sure = agree or len(reached) > 2
    after = statistics.median(reached) if is_sure else min(reached, key=lambda v: abs(v - level))
    return LevelChange(kind="step", onset=onset, seen=tonight, before=level, change=after - level)


def _all_beyond(departures: Sequence[float], limit: float) -> bool:
    """True if all are further from the level than the limit, on the same side."""
    return min(departures) > limit or max(departures) < -limit


def _lasting_step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """The step that a t test finds between two groups of nights, the later one up to tonight."""
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
    """The number of last nights that are slower than all before them without a proven step.

    They are no reference for the next night, or a loss would hide itself.
    """
    splits = [
        (spread, len(level) - split)
        for split, change, spread, error in _splits(level, 1)
        if change > max(_SUSPECT_LOSS, error * t_quantile(_SUSPECT_CONFIDENCE, len(level) - 2))
    ]
    return min(splits)[1] if splits else 0


def _splits(level: Sequence[float], fewest: int) -> Iterator[tuple[int, float, float, float]]:
    """Each split of the nights in two: index, difference of means, squared residual, error."""
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
    """The slow change of the last week from the best or the worst week before it."""
    earlier = weeks[:-_WEEK]
    if not earlier:
        return None
    before = max(min(earlier), max(earlier), key=lambda week: abs(weeks[-1] - week))
    change = weeks[-1] - before
    if abs(change) <= max(_SMALLEST_DRIFT, _DRIFT_DEVIATIONS * deviation):
        return None
    return LevelChange(kind="drift", onset=tonight, seen=tonight, before=before, change=change)
