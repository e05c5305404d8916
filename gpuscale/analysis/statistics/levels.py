"""Levels of a series of nights: when it changed, told from nights that only scatter.

A night counts as its logarithm. Single nights may lie anywhere, so a change is believed only when
two in succession lie beyond the level and agree, or lie far beyond it, or three do in any way, or
when three and more differ from all nights before them by a t test, or when the median of a week has
moved away from the best or worst week since the last change, which a slow drift does in steps too
small for the others. The limits were set by simulation (docs/evidence/rates.md has the rates,
tests/test_levels.py holds them).
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
"""Nights that a level needs before another can be told from it."""
_SMALLEST_STEP = math.log(1.015)
_STEP_DEVIATIONS = 2.42
_FAR = 5 / 3
"""How far beyond two nights must lie that do not agree, since one of them may be outlying."""
_OF_FEW_NIGHTS = 6.5
"""Few nights tell their level and deviation badly: the step is larger by this over their number."""
_FEWEST_LASTING = 3
"""Nights on a new level that a t test believes."""
_LASTING_CONFIDENCE = 1 - 1e-5
"""One-sided; each night makes the test for every night on which the level may have begun."""
_SUSPECT_CONFIDENCE = 0.99
"""The same of nights that only leave the reference of those after them."""
_SUSPECT_LOSS = math.log(1.02)
_WEEK = 7
_SMALLEST_DRIFT = math.log(1.025)
_DRIFT_DEVIATIONS = 3.0
_OUTLYING_DEVIATIONS = 4.0
_OF_DEVIATION = 60
"""The latest nights that tell how much one differs from the next."""
_DEVIATION_OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""Of normal noise: the median absolute difference of successive values over their deviation."""
_ENOUGH_TO_EXCLUDE = 6
"""Allocations of which one that lies far from the others is told from their spread."""
_MOST_EXCLUDED = 0.25
"""The part of nights or allocations that may lie far: more are another level."""
_OUTLYING_FAR = 7.0
"""Deviations, by the median absolute one, beyond which an allocation is not one of them."""
_OUTLYING_NEAREST = 0.02
_DEVIATION_OF_MEDIAN = 1.4826
"""Standard over median absolute deviation of normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A series that went to another level and stayed there."""

    kind: Kind
    onset: int
    """Index of the first night on the new level; of a drift, of the night on which it was seen."""
    seen: int
    """Index of the night that showed it."""
    before: float
    """The level that it left."""
    change: float
    """From level to level."""


def night_deviation(values: Sequence[float]) -> float:
    """Standard deviation of one night about its level, which single nights and drifts hardly move.

    It is 0 of fewer than two nights.
    """
    differences = [abs(now - before) for before, now in itertools.pairwise(values)]
    return statistics.median(differences) / _DEVIATION_OF_DIFFERENCES if differences else 0.0


def level_changes(values: Sequence[float]) -> tuple[LevelChange, ...]:
    """The changes of level of a series, in order, as each night showed them.

    Each night is judged by those before it alone, so that what was said of a night stays.
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
            # A week ends with the night of its index; none reaches back beyond the last change.
            change = _drift(weeks[begin + _WEEK - 1 : tonight + 1], tonight, deviation)
        if change is not None:
            found.append(change)
            begin = change.onset
    return tuple(found)


def departure(before: Sequence[float], night: float) -> float | None:
    """How far a night lies from those that it is compared with; None where there are none."""
    if not before:
        return None
    values = {str(number): value for number, value in enumerate(before)}
    far = outlying_allocations(values)
    return night - statistics.fmean(value for name, value in values.items() if name not in far)


def stands_out(level: Sequence[float], departure: float) -> bool:
    """True of a departure from a level of which a second one like it would be a step."""
    return len(level) >= FEWEST_NIGHTS and abs(departure) > _step_size(level)


def is_far(values: Sequence[float], departure: float) -> bool:
    """True of a departure larger than what the last of these nights usually differ by.

    Where they are few it need not stand out: they tell neither that it is outlying nor that not.
    """
    return abs(departure) > _nearest_outlying(values[-REMEMBERED - 1 :])


def outlying(values: Sequence[float]) -> tuple[int, ...]:
    """The nights of one level that lie far from the others, by index."""
    level, far = statistics.median(values), _nearest_outlying(values)
    found = tuple(i for i, value in enumerate(values) if abs(value - level) > far)
    return found if _are_few(found, values) else ()


def _nearest_outlying(values: Sequence[float]) -> float:
    return max(_SMALLEST_STEP, _OUTLYING_DEVIATIONS * night_deviation(values))


def outlying_allocations(values: Mapping[str, float]) -> dict[str, float]:
    """By how much the value of each allocation that lies far from the others is above them.

    One sick night would widen their spread until it hides a loss that all the others show.
    """
    # Not `outlying`: that knows the order, and parts with 3 to 9 times as many.
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
    """The smallest departure from the level of these nights that may be a step."""
    few = 1 + _OF_FEW_NIGHTS / min(len(before), REMEMBERED)
    return max(_SMALLEST_STEP, _STEP_DEVIATIONS * few * night_deviation(before[-_OF_DEVIATION:]))


def _step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """The step away from the level that began there, which tonight and last night show."""
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
    # Of two nights that differ, the one further away may be outlying.
    is_sure = agree or len(reached) > 2
    after = statistics.median(reached) if is_sure else min(reached, key=lambda v: abs(v - level))
    return LevelChange(kind="step", onset=onset, seen=tonight, before=level, change=after - level)


def _all_beyond(departures: Sequence[float], limit: float) -> bool:
    """True where all lie further from the level than the limit, on one side of it."""
    return min(departures) > limit or max(departures) < -limit


def _lasting_step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """The step that the nights since some night show against those before it, by a t test."""
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
    """How many of the last nights are slower than all before them, though no step is shown yet.

    They are no reference for the night after them, or a loss would hide itself.
    """
    splits = [
        (spread, len(level) - split)
        for split, change, spread, error in _splits(level, 1)
        if change > max(_SUSPECT_LOSS, error * t_quantile(_SUSPECT_CONFIDENCE, len(level) - 2))
    ]
    return min(splits)[1] if splits else 0


def _splits(level: Sequence[float], fewest: int) -> Iterator[tuple[int, float, float, float]]:
    """Each way to part nights in two: where, the difference of means, what is left, its error."""
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
    """The slow change that the last week shows against the best or the worst one before it."""
    earlier = weeks[:-_WEEK]
    if not earlier:
        return None
    before = max(min(earlier), max(earlier), key=lambda week: abs(weeks[-1] - week))
    change = weeks[-1] - before
    if abs(change) <= max(_SMALLEST_DRIFT, _DRIFT_DEVIATIONS * deviation):
        return None
    return LevelChange(kind="drift", onset=tonight, seen=tonight, before=before, change=change)
