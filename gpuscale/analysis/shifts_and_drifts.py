"""Distinguish real changes of level in a nightly series of log values from scatter.

A change is reported if one of these holds: the last two nights are off the level and agree, or are
both far off it; the last three are off it on the same side; the last three or more differ in a t
test from those before them; or, for a slow drift, the median of the latest week is far from that of
the best or worst week since the last change. Simulated error rates are in docs/evidence/rates.md.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Sample, log_sample
from gpuscale.analysis.outliers import are_few, odd_one, usual_values
from gpuscale.analysis.probabilities import t_quantile

Kind = Literal["step", "drift"]

REMEMBERED = 15
"""Maximum number of preceding nights from which a level is computed."""
FEWEST_NIGHTS = 4
"""Minimum number of nights on a level before a change from it can be detected."""
_SMALLEST_STEP = math.log(1.015)
_STEP_ALARMS = 0.002
"""One-sided significance level of testing two nights for a step. It is divided by the number of
nights before them, so that a long series adds few false alarms."""
_FAR = 5 / 3
"""Factor on the required size of a step if its two nights disagree, since one may be an outlier."""
_FEW_NIGHTS = 9
"""Minimum number of nights for which mean and deviation are used; medians are used for fewer, since
a change among few nights would hide in their deviation."""
_FEW_DEVIATIONS = 2.42
_OF_FEW_NIGHTS = 6.5
"""Allowance for short series: a step must be larger than `_FEW_DEVIATIONS` * (1 +
`_OF_FEW_NIGHTS` / nights) standard deviations."""
_FEWEST_LASTING = 3
"""Minimum number of nights on a new level for the t test."""
_LASTING_CONFIDENCE = 1 - 1e-5
"""One-sided confidence of the t test; high, since every night tests each possible onset again."""
_SUSPECT_CONFIDENCE = 0.99
"""One-sided confidence needed to exclude slower nights from the reference of later nights."""
_SUSPECT_LOSS = math.log(1.02)
_WEEK = 7
_SMALLEST_DRIFT = math.log(1.025)
_DRIFT_DEVIATIONS = 3.0
_OUTLYING_DEVIATIONS = 4.0
_OF_DEVIATION = 60
"""Maximum number of recent nights from which the deviation between nights is estimated."""
_DEVIATION_OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""Median absolute difference between successive values of normal noise, in standard deviations."""


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting change in the level of a series of nightly values."""

    kind: Kind
    onset: int
    """Index of the first night on the new level; for a drift, of the night that revealed it."""
    seen: int
    """Index of the night that revealed the change."""
    before: float
    """Former level, as a logarithm."""
    change: float
    """New level minus former level; positive if the row got slower."""


def night_deviation(values: Sequence[float]) -> float:
    """Return a robust standard deviation of nightly values; 0 if there are fewer than two."""
    differences = [abs(now - before) for before, now in itertools.pairwise(values)]
    return statistics.median(differences) / _DEVIATION_OF_DIFFERENCES if differences else 0.0


def level_changes(values: Sequence[float]) -> tuple[LevelChange, ...]:
    """Return the level changes of a series, in the order in which they became apparent.

    Later nights never alter earlier findings, so a change that was once reported stays reported.
    """
    ends = range(1, len(values) + 1)
    # `weeks[i]` is the median of the week that ends with night `i`.
    weeks = [statistics.median(values[max(0, end - _WEEK) : end]) for end in ends]
    found: list[LevelChange] = []
    begin, extremes, next_week = 0, list[float](), _WEEK - 1
    for tonight in range(len(values)):
        # Earlier weeks start after the last change and do not overlap the present week. Only their
        # extremes are kept, since a search of all of them on every night takes twice the time.
        if (end := tonight + 1 - _WEEK) > next_week:
            past = [*extremes, *weeks[next_week:end]]
            extremes, next_week = [min(past), max(past)], end
        if tonight - 1 - begin < FEWEST_NIGHTS:
            continue
        change = (
            _step(values, begin, tonight)
            or _lasting_step(values, begin, tonight)
            or _drift(values, begin, tonight, weeks[tonight], extremes)
        )
        if change is not None:
            found.append(change)
            begin, extremes, next_week = change.onset, [], change.onset + _WEEK - 1
    return tuple(found)


def departure(before: Sequence[float], night: float) -> float | None:
    """Return `night` minus the mean of `before`, outliers excluded; None if `before` is empty."""
    usual = [*usual_values(before)]
    # One bad night is not the level of a few others, unless the present one is like it.
    odd = odd_one([*usual, night]) if len(usual) < _FEW_NIGHTS else None
    if odd is not None and odd < len(usual):
        del usual[odd]
    return night - statistics.fmean(usual) if usual else None


def stands_out(level: Sequence[float], departure: float) -> bool:
    """Return True if a second night with this departure would prove a change of level."""
    return len(level) >= FEWEST_NIGHTS and abs(departure) > step_size(level)


def is_far(values: Sequence[float], departure: float) -> bool:
    """True if a departure from the level is larger than the latest nights' scatter explains."""
    return abs(departure) > _nearest_outlying(values[-REMEMBERED - 1 :])


def outlying(values: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of outliers among the nights of one level; empty if there are too many."""
    level, is_few = statistics.median(values), len(values) < _FEW_NIGHTS
    far = max(_nearest_outlying(values), step_size(values) if is_few else 0.0)
    found = tuple(i for i, value in enumerate(values) if abs(value - level) > far)
    return found if are_few(found, values) else ()


def _nearest_outlying(values: Sequence[float]) -> float:
    return max(_SMALLEST_STEP, _OUTLYING_DEVIATIONS * night_deviation(values))


def step_size(before: Sequence[float]) -> float:
    """Return how far two nights' mean must be from the level `before` to show a change of level."""
    nights = min(len(before), REMEMBERED)
    if len(before) < _FEW_NIGHTS:
        few = _FEW_DEVIATIONS * (1 + _OF_FEW_NIGHTS / nights)
        return max(_SMALLEST_STEP, few * night_deviation(before))
    usual = usual_values(before[-_OF_DEVIATION:])
    quantile = t_quantile(1 - _STEP_ALARMS / len(usual), len(usual) - 1)
    error = math.sqrt((log_sample(usual).variance or 0.0) * (1 / 2 + 1 / nights))
    return max(_SMALLEST_STEP, quantile * error)


def _step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """Return the change of level that the last two or three nights show; None if they show none."""
    first = max(begin, tonight - 1 - REMEMBERED)
    before = values[first : tonight - 1]
    is_few = len(before) < _FEW_NIGHTS
    level = statistics.median(before) if is_few else statistics.fmean(usual_values(before))
    last = [value - level for value in values[max(begin, tonight - 2) : tonight + 1]]
    departed = abs(statistics.fmean(last[-2:])) if not is_few else min(map(abs, last[-2:]))
    if departed <= _SMALLEST_STEP:
        return None
    beyond = step_size(values[begin : tonight - 1])
    agree = abs(last[-1] - last[-2]) <= beyond
    is_clear = (agree and departed > beyond) or _all_beyond(last[-2:], _FAR * beyond)
    if not is_clear and not _all_beyond(last, beyond):
        return None

    def left_over(onset: int) -> float:
        parts = (values[first:onset], values[onset : tonight + 1])
        return math.fsum(abs(v - statistics.median(part)) for part in parts for v in part)

    # Two nights are enough to start a level, so a level may also end after two nights.
    onset = min(range(first + 2, tonight), key=left_over)
    reached = values[onset : tonight + 1]
    after = statistics.median(reached)
    if not agree and len(reached) == 2:
        # The night that is further away may be outlying.
        after = min(reached, key=lambda value: abs(value - level))
    return LevelChange(kind="step", onset=onset, seen=tonight, before=level, change=after - level)


def _all_beyond(departures: Sequence[float], limit: float) -> bool:
    """True if all departures are larger than the limit, on the same side of the level."""
    return min(departures) > limit or max(departures) < -limit


def _lasting_step(values: Sequence[float], begin: int, tonight: int) -> LevelChange | None:
    """Return the change of level found by a t test of the latest nights; None if there is none."""
    first = max(begin, tonight + 1 - REMEMBERED - _FEWEST_LASTING)
    level = values[first : tonight + 1]
    if not (splits := [*_splits(level, _FEWEST_LASTING, _SMALLEST_STEP, _LASTING_CONFIDENCE)]):
        return None
    _, split, _ = min(splits)
    before, after = statistics.median(level[:split]), statistics.median(level[split:])
    change, onset = after - before, first + split
    return LevelChange(kind="step", onset=onset, seen=tonight, before=before, change=change)


def suspect_nights(level: Sequence[float]) -> int:
    """Return how many of the latest nights on a level are probably slower than those before."""
    splits = _splits(level, 1, _SUSPECT_LOSS, _SUSPECT_CONFIDENCE)
    slower = [(spread, len(level) - split) for spread, split, change in splits if change > 0]
    return min(slower)[1] if slower else 0


def _splits(
    level: Sequence[float], fewest: int, smallest: float, confidence: float
) -> Iterator[tuple[float, int, float]]:
    """Yield each significant split of a level: residual sum of squares, index and change of mean.

    The second part has at least `fewest` nights. The means of the two parts differ by more than
    `smallest` and, in a t test, significantly at the given one-sided confidence.
    """
    count = len(level)
    if count < FEWEST_NIGHTS + fewest:
        return
    middle = statistics.fmean(level)
    sums = list(itertools.accumulate(value - middle for value in level))
    squares = math.fsum((value - middle) ** 2 for value in level)
    for split in range(FEWEST_NIGHTS, count - fewest + 1):
        before, after = sums[split - 1] / split, -sums[split - 1] / (count - split)
        if abs(after - before) <= smallest:
            continue
        spread = max(0.0, squares - before**2 * split - after**2 * (count - split))
        error = math.sqrt(spread / (count - 2) * (1 / split + 1 / (count - split)))
        if abs(after - before) > error * t_quantile(confidence, count - 2):
            yield spread, split, after - before


def _drift(
    values: Sequence[float], begin: int, tonight: int, week: float, earlier: Sequence[float]
) -> LevelChange | None:
    """Return the drift to this `week` from the farthest `earlier` weekly median; None if small."""
    if not earlier:
        return None
    before = max(earlier, key=lambda level: abs(week - level))
    change, recent = week - before, values[max(begin, tonight - _OF_DEVIATION) : tonight + 1]
    if abs(change) <= _SMALLEST_DRIFT or abs(change) <= _DRIFT_DEVIATIONS * night_deviation(recent):
        return None
    return LevelChange(kind="drift", onset=tonight, seen=tonight, before=before, change=change)


def unrecovered_loss(found: Sequence[LevelChange], tonight: float) -> int | None:
    """Return the last slowdown's index in `found` if over half of it remains tonight, else None."""
    last = max((i for i, change in enumerate(found) if change.change > 0), default=None)
    if last is None:
        return None
    reached = min(found[-1].before + found[-1].change, tonight)
    return last if found[last].change < 2 * (reached - found[last].before) else None


def levels_beside(
    values: Sequence[float], found: Sequence[LevelChange], first: int, last: int
) -> tuple[Sample, Sample]:
    """Return samples of the levels before change `first` and after change `last`, without outliers.

    `first` and `last` are indices into `found`. At most 15 nights on either side are used.
    """
    left, reached = found[first], found[last]
    if "drift" in (left.kind, reached.kind):
        # The levels of a drift are weeks apart, and the nights in between are samples of neither.
        after = Sample(mean=reached.before + reached.change, variance=None, count=_WEEK, df=0)
        return replace(after, mean=left.before), after
    begin = found[first - 1].onset if first else 0
    end = found[last + 1].onset if last + 1 < len(found) else len(values)
    before = values[max(begin, left.onset - REMEMBERED) : left.onset]
    after_it = values[reached.onset : min(end, reached.onset + REMEMBERED)]
    far_before, far_after = outlying(before), outlying(after_it)
    return (
        log_sample([value for i, value in enumerate(before) if i not in far_before]),
        log_sample([value for i, value in enumerate(after_it) if i not in far_after]),
    )
