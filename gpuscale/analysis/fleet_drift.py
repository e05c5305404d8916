"""Robust standard deviation, and speed drift of a cluster whose nodes are measured one by one."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence

from gpuscale.analysis.outliers import DEVIATION_OF_MEDIAN
from gpuscale.records.cause import NodeVisit

EFFICIENCY = 0.82
"""Degrees of freedom of a robust deviation, as a fraction of those of a standard deviation."""
_OUTLYING = 3.5
"""Distance from the median, in robust standard deviations, beyond which a value is ignored."""
_CONTROL_WEIGHT = 4
"""Weight of a visit to a control node, whose level is well known; other visits have weight 1."""
_NEAR, _OF_VISITS = (12, 40), 6
"""Total weight of the nearby visits from which a level is computed: the number of all visits
divided by `_OF_VISITS`, but within the range `_NEAR`."""
_ONE_SIDED, _RISE_ERRORS = 0.25, 3.0
"""A level is extrapolated only if it is further from the mean time of the visits than `_ONE_SIDED`
times the time between their two halves, which must differ by `_RISE_ERRORS` standard errors."""
_ROUNDS = 10


def robust_deviation(values: Sequence[float]) -> float:
    """Return a standard deviation that outliers hardly affect; 0 for a single value."""
    middle = statistics.median(values)
    far = _OUTLYING * DEVIATION_OF_MEDIAN * statistics.median(abs(v - middle) for v in values)
    near = [value for value in values if abs(value - middle) <= far]
    return statistics.stdev(near) if len(near) > 1 else 0.0


def drift_levels(visits: Sequence[NodeVisit], values: Sequence[float]) -> list[float]:
    """Return the cluster level at each visit: a trimmed mean of other nodes' values near that time.

    A visit is one job on one node; `values` has one value per visit. Visits to control nodes weigh
    more, after removal of these nodes' own offsets. Jobs that recheck a suspect node are not used.
    """
    controls = {visit.node for visit in visits if visit.is_control}
    usable = sorted(
        (visit.measured_at_s, i, _CONTROL_WEIGHT if visit.node in controls else 1)
        for i, visit in enumerate(visits)
        if visit.is_control or not visit.job
    )
    times_s = [visit.measured_at_s for visit in visits]
    wanted = min(max(_NEAR[0], len(usable) // _OF_VISITS), _NEAR[1])
    near: list[list[int]] = []
    for visit in visits:
        # A node's own visits are excluded, since they would pull the level towards the node.
        others = [each for each in usable if visits[each[1]].node != visit.node] or usable
        place = bisect_left(others, (visit.measured_at_s,))
        around = others[max(0, place - wanted) : place + wanted]
        nearest: list[int] = []
        for _, i, weight in sorted(around, key=lambda each: abs(each[0] - visit.measured_at_s)):
            nearest += [i] * (weight if len(nearest) < wanted else 0)
        near.append(sorted(nearest, key=times_s.__getitem__))
    own: dict[str, float] = {}
    levels: list[float] = []
    for _ in range(_ROUNDS):
        rest = [value - own.get(at.node, 0.0) for at, value in zip(visits, values, strict=True)]
        levels = [
            _level(at_s, [times_s[i] for i in nearest], [rest[i] for i in nearest])
            for at_s, nearest in zip(times_s, near, strict=True)
        ]
        left = [value - level for value, level in zip(values, levels, strict=True)]
        own = {
            node: statistics.fmean(left[i] for i, visit in enumerate(visits) if visit.node == node)
            for node in controls
        }
    return levels


def _level(at_s: float, times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return a trimmed mean, extrapolated by a clear trend if `at_s` is far from the mean time."""
    level, half = _trimmed_mean(values), len(values) // 2
    if half > 1 and times_s[0] < times_s[-1]:
        apart_s = statistics.fmean(times_s[-half:]) - statistics.fmean(times_s[:half])
        lever = (at_s - statistics.fmean(times_s)) / apart_s
        early, late = values[:half], values[-half:]
        rise = _trimmed_mean(late) - _trimmed_mean(early)
        # statistics.stdev uses exact fractions and would take most of the time to judge a sweep.
        apart = (math.dist(part, [statistics.fmean(part)] * half) for part in (early, late))
        error = math.hypot(*apart) / math.sqrt(half * (half - 1))
        if abs(lever) > _ONE_SIDED and abs(rise) > _RISE_ERRORS * error:
            level += max(-1.0, min(lever, 1.0)) * rise
    return level


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = len(values) // 5
    return statistics.fmean(sorted(values)[cut : len(values) - cut])
