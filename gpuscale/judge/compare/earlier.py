"""Choose the earlier nights with which the current night is compared."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuscale.analysis.estimates import grouped_log_sample
from gpuscale.analysis.history import History, RowHistory, history_of_nights, nights_before
from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.analysis.nights import left_out_of, nights_of
from gpuscale.analysis.scaling import references_of
from gpuscale.base.errors import UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.text import counted
from gpuscale.judge.sides import baseline_of_results
from gpuscale.records import Baseline, PointKey, Results, Run, Tolerances
from gpuscale.records.baseline import SPEEDUP, THROUGHPUT, ToleranceOverride

_OTHER_LEVEL = 0.01
"""Smallest relative difference in step time between nights on different levels."""
_LARGEST_DEVIATION = 0.5
_FEWEST_RESIDUALS = 3
"""Minimum number of degrees of freedom for estimating the deviation between nights."""


class EarlierNights(NamedTuple):
    """The nights before the current one, and which of them each row is compared with."""

    history: History
    """The history of these nights and the current one."""
    last: list[Results]
    """Results of the last 15 nights; a row's runs before its last change of level are left out."""
    later: int
    """Number of nightly runs that began after the current one; they are ignored."""
    compared: Mapping[PointKey, Sequence[int]]
    """Nights that each row is compared with, as indices into the nights of `history`."""
    tolerances: Tolerances
    """The default ones; for rows with few nights to compare with, and if larger than the declared
    one, the deviation between the nights on their earlier levels."""

    def as_baseline(self, name: str) -> Baseline:
        """Make a temporary baseline, called `name`, with these nights' results and tolerances."""
        baseline = baseline_of_results(self.last, name=name)
        return msgspec.structs.replace(baseline, tolerances=self.tolerances)


def earlier_nights(read: Sequence[Results], tonight: Sequence[Results]) -> EarlierNights:
    """Return the nights in `read` that began before `tonight`; raise UsageError if none did."""
    # Given alone, a night that was left out is judged all the same.
    present = nights_of(msgspec.structs.replace(result, left_out=None) for result in tonight)
    names = {night.allocation for night in present}
    others = [night for night in nights_of(read) if night.allocation not in names]
    earlier = [night for night in others if not present or night.began_at < present[0].began_at]
    later = len(others) - len(earlier)
    if not earlier:
        after = f"; {counted(later, 'night')} began later: judge one of these" if later else ""
        problem = "no night with a valid run began before these results"
        raise UsageError(f"--history: {problem}{after}")
    history = history_of_nights((*earlier, *present), left_out_of([*read, *tonight]))
    # Nights at other levels would widen the spread so much that a new loss might be missed; changes
    # to a slower level are reported separately.
    before = history_of_nights(tuple(earlier))
    compared = _compared_nights(before)
    on_level = {
        (point, before.nights[night].allocation)
        for point, nights in compared.items()
        for night in nights
    }
    return EarlierNights(
        history=history,
        last=_chosen(read, lambda run, at: (PointKey.of(run), at) in on_level),
        later=later,
        compared=compared,
        tolerances=_tolerances(before, compared),
    )


def last_night(read: Sequence[Results]) -> list[Results]:
    """Return the results of the latest night; raise UsageError if no night has a valid run."""
    if not (nights := nights_of(read)):
        raise UsageError("the results hold no valid run")
    return _chosen(read, lambda _, allocation: allocation == nights[-1].allocation)


def _chosen(read: Sequence[Results], keeps: Callable[[Run, str], bool]) -> list[Results]:
    """Keep the runs for which `keeps(run, allocation)` is true; drop excluded and empty results."""
    return [
        msgspec.structs.replace(result, runs=runs)
        for result in read
        if not result.left_out
        and (runs := tuple(run for run in result.runs if keeps(run, result.allocation_of(run))))
    ]


def _compared_nights(before: History) -> Mapping[PointKey, Sequence[int]]:
    """Map each row to the recent nights to compare it with, as indices into `before.nights`.

    Nights before a row's last change of level are left out. If a row and its 1-GPU reference both
    changed, but only one of these changes was detected, both rows keep the older nights.
    """
    nights = before.nights
    chosen = {
        row.point: nights_before(len(nights), row.point, nights, row.changes) for row in before.rows
    }
    pairs = [pair for pair in references_of(chosen).items() if pair[0] != pair[1]]

    def differs(point: PointKey, *sides: Sequence[int]) -> bool:
        logs = [
            [nights[i].log_costs[point] for i in side if point in nights[i].log_costs]
            for side in sides
        ]
        if not all(logs):
            return False
        first, second = map(statistics.fmean, logs)
        return abs(first - second) > _OTHER_LEVEL

    # The nights of one pair may change those of the pairs before it, by way of the 1-GPU row.
    for pair in pairs * len(pairs):
        sides = [chosen[point] for point in pair]
        if all(differs(point, *sides) for point in pair):
            first = min(sides, key=lambda side: (side[0], len(side)))
            for point in pair:
                chosen[point] = tuple(i for i in first if point in nights[i].log_costs)
    return chosen


def _tolerances(before: History, compared: Mapping[PointKey, Sequence[int]]) -> Tolerances:
    """Return the default tolerances, widened for rows that are compared with few, noisy nights."""
    tolerances, rows = Tolerances(), {row.point: row for row in before.rows}
    references = references_of(rows)
    found: dict[tuple[object, ...], ToleranceOverride] = {}

    def widen(point: PointKey, metric: str, declared: float, *its_rows: RowHistory) -> None:
        deviation = min(_deviation_of_nights(before, its_rows), _LARGEST_DEVIATION)
        if deviation > declared:
            override = ToleranceOverride(
                case=point.configuration.case,
                strategy=point.configuration.strategy,
                gpus=point.gpus,
                metric=metric,
                allocation_deviation=deviation,
            )
            found.setdefault(override.conditions, override)

    for point, row in rows.items():
        if 0 < len(compared[point]) < MINIMUM_ALLOCATIONS:
            widen(point, THROUGHPUT, tolerances.allocation_deviation_time, row)
            one = references.get(point, point)
            if one != point:
                widen(point, SPEEDUP, tolerances.allocation_deviation_speedup, row, rows[one])
    return msgspec.structs.replace(tolerances, overrides=tuple(found.values()))


def _deviation_of_nights(before: History, rows: Sequence[RowHistory]) -> float:
    """Return the night-to-night standard deviation of log T or, for two rows, of log(T(n)/T(1))."""
    onsets = sorted({change.onset for row in rows for change in row.changes})
    shared = sorted(set.intersection(*({*row.nights} - {*row.outlying} for row in rows)))
    logs = ([before.nights[i].log_costs[row.point] for row in rows] for i in shared)
    values = [own - math.fsum(other) for own, *other in logs]
    levels = by_key(zip((bisect_right(onsets, i) for i in shared), values, strict=True))
    if len(values) - len(levels) < _FEWEST_RESIDUALS:
        return 0.0
    return math.sqrt(grouped_log_sample(levels.values()).variance or 0.0)
