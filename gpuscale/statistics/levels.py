"""Levels of a series of nights: when it changed, told from nights that only scatter.

A night counts as its logarithm. Single nights may lie anywhere, so a change is believed only when
two in succession lie beyond the level and agree, or three do in any way, or when the median of a
week has moved away from the best week since the last change, which a slow drift does in steps too
small for the first. How far is beyond was set by simulation (docs/history.md has the rates, tests/test_levels.py holds them).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["step", "drift"]

REMEMBERED = 15
"""Nights before tonight whose median is the level."""
FEWEST_NIGHTS = 4
"""Nights that a level needs before another can be told from it."""
_SMALLEST_STEP = math.log(1.015)
_STEP_DEVIATIONS = 2.6
_OF_FEW_NIGHTS = 2.5
"""Few nights tell their level and deviation badly: the step is larger by this over their number."""
_WEEK = 7
_SMALLEST_DRIFT = math.log(1.025)
_DRIFT_DEVIATIONS = 3.0
_OF_DEVIATION = 60
"""The latest nights that tell how much one differs from the next."""
_DEVIATION_OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""Of normal noise: the median absolute difference of successive values over their deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A series that went to another level and stayed there."""

    kind: Kind
    onset: int
    """Index of the first night on the new level; of a drift, of the night on which it was seen."""
    seen: int
    """Index of the night that showed it."""
    change: float
    """From level to level, of the logarithm."""


def night_deviation(values: Sequence[float]) -> float:
    """Standard deviation of one night about its level, which single nights and drifts hardly move.

    It is 0 of fewer than two nights.
    """
    differences = [abs(now - before) for before, now in zip(values, values[1:], strict=False)]
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
        deviation = night_deviation(values[max(begin, tonight - _OF_DEVIATION) : tonight - 1])
        change = _step(values, begin, tonight, deviation)
        # A week ends with the night of its index; none reaches back beyond the last change.
        change = change or _drift(weeks[begin + _WEEK - 1 : tonight + 1], tonight, deviation)
        if change is not None:
            found.append(change)
            begin = change.onset
    return tuple(found)


def _step(
    values: Sequence[float], begin: int, tonight: int, deviation: float
) -> LevelChange | None:
    """The step away from the level that began there, which tonight and last night show."""
    first = max(begin, tonight - 1 - REMEMBERED)
    before = values[first : tonight - 1]
    level, few = statistics.median(before), 1 + _OF_FEW_NIGHTS / len(before)
    beyond = max(_SMALLEST_STEP, _STEP_DEVIATIONS * few * deviation)
    last = [value - level for value in values[max(begin, tonight - 2) : tonight + 1]]
    if abs(last[-1] - last[-2]) <= beyond:
        last = last[-2:]
    if not (min(last) > beyond or max(last) < -beyond):
        return None

    def left_over(onset: int) -> float:
        parts = (values[first:onset], values[onset : tonight + 1])
        return math.fsum(abs(v - statistics.median(part)) for part in parts for v in part)

    onset = min(range(first + FEWEST_NIGHTS, tonight), key=left_over)
    after = statistics.median(values[onset : tonight + 1])
    return LevelChange(kind="step", onset=onset, seen=tonight, change=after - level)


def _drift(weeks: Sequence[float], tonight: int, deviation: float) -> LevelChange | None:
    """The slow change to the worse that the last week shows against the best one before it."""
    earlier = weeks[:-_WEEK]
    if not earlier:
        return None
    change = weeks[-1] - min(earlier)
    if change <= max(_SMALLEST_DRIFT, _DRIFT_DEVIATIONS * deviation):
        return None
    return LevelChange(kind="drift", onset=tonight, seen=tonight, change=change)
