"""Robust deviation, and the drift of a machine whose nodes are measured one after another."""

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from gpuscale.analysis.statistics.levels import DEVIATION_OF_MEDIAN
from gpuscale.records.fleet import NodeVisit

EFFICIENCY = 0.82
"""Degrees of freedom of a robust deviation, as a fraction of those of a standard deviation."""
_OUTLYING = 3.5
"""Distance from the median, in deviations, beyond which a value is ignored."""
_CONTROL_WEIGHT = 4
"""Weight of a visit to a control node, which is visited repeatedly, so that its level is known."""
_NEAR, _OF_VISITS = (12, 40), 6
"""Limits of the total weight of the nearest visits that determine a level; between the limits, it
is the number of all visits divided by `_OF_VISITS`."""
_ONE_SIDED, _RISE_ERRORS = 0.25, 3.0
"""Lever, and rise in standard errors, from which the level is continued to a moment at the end."""
_ROUNDS = 10


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of values without outliers; 0 for a single value."""
    middle = statistics.median(values)
    far = _OUTLYING * DEVIATION_OF_MEDIAN * statistics.median(abs(v - middle) for v in values)
    near = [value for value in values if abs(value - middle) <= far]
    return statistics.stdev(near) if len(near) > 1 else 0.0


def drift_levels(visits: Sequence[NodeVisit], values: Sequence[float]) -> list[float]:
    """Return the common level at the time of each visit: a trimmed mean over the nearest visits.

    The level of a control node is known from its other visits, so these visits weigh more than
    those of a node visited once. Visits on suspicion are left out.
    """
    controls = {visit.node for visit in visits if visit.is_control}
    usable = sorted(
        (visit.measured_at_s, i, _CONTROL_WEIGHT if visit.node in controls else 1)
        for i, visit in enumerate(visits)
        if visit.is_control or not visit.job
    )
    times_s = [visit.measured_at_s for visit in visits]
    wanted = min(max(_NEAR[0], len(usable) // _OF_VISITS), _NEAR[1])
    near, levers = list[list[int]](), list[float]()
    counts = Counter(visits[i].node for _, i, _ in usable)
    for visit in visits:
        # Its own visits would draw the level towards the node, but a second job would not.
        place, most = bisect_left(usable, (visit.measured_at_s,)), wanted + counts[visit.node]
        before, after = (
            [each for each in part if visits[each[1]].node != visit.node or len(counts) == 1]
            for part in (usable[max(0, place - most) : place], usable[place : place + most])
        )
        nearest = _nearest(visit.measured_at_s, before[-wanted:] + after[:wanted], wanted)
        near.append(sorted(nearest, key=times_s.__getitem__))
        levers.append(_lever(visit.measured_at_s, [times_s[i] for i in near[-1]]))
    own: dict[str, float] = {}
    levels: list[float] = []
    for _ in range(_ROUNDS):
        rest = [value - own.get(at.node, 0.0) for at, value in zip(visits, values, strict=True)]
        levels = [
            _level([rest[i] for i in nearest], lever)
            for nearest, lever in zip(near, levers, strict=True)
        ]
        left = [value - level for value, level in zip(values, levels, strict=True)]
        own = {
            node: statistics.fmean(left[i] for i, visit in enumerate(visits) if visit.node == node)
            for node in controls
        }
    return levels


def _nearest(at: float, near: Sequence[tuple[float, int, int]], wanted: int) -> list[int]:
    """Return the indices of the visits nearest in time, each repeated according to its weight."""
    nearest: list[int] = []
    for _, index, weight in sorted(near, key=lambda visit: abs(visit[0] - at)):
        nearest += [index] * (weight if len(nearest) < wanted else 0)
    return nearest


def _lever(at_s: float, times_s: Sequence[float]) -> float:
    """Return how far a moment is from the middle of ordered times, in distances of their halves.

    It is 0 if as many visits are near before as after; at the ends of a sweep it is about 1.
    """
    half = len(times_s) // 2
    apart_s = half and statistics.fmean(times_s[-half:]) - statistics.fmean(times_s[:half])
    lever = (at_s - statistics.fmean(times_s)) / apart_s if apart_s else 0.0
    return max(-1.0, min(lever, 1.0)) if abs(lever) > _ONE_SIDED else 0.0


def _level(values: Sequence[float], lever: float) -> float:
    """Return the trimmed mean of values in the order of time, continued if they rise or fall."""
    level, half = _trimmed_mean(values), len(values) // 2
    if lever and half > 1:
        early, late = values[:half], values[-half:]
        rise = _trimmed_mean(late) - _trimmed_mean(early)
        error = math.hypot(statistics.stdev(early), statistics.stdev(late)) / math.sqrt(half)
        level += lever * rise if abs(rise) > _RISE_ERRORS * error else 0.0
    return level


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = len(values) // 5
    return statistics.fmean(sorted(values)[cut : len(values) - cut])
