"""Find outliers: runs, allocations or nights whose values are far from all others.

`level_changes.outlying` finds nights that are outliers in a series.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Sized

from gpuscale.analysis.estimates import SIGNIFICANCE
from gpuscale.analysis.probabilities import t_probability

_ENOUGH_TO_EXCLUDE = 6
"""Minimum number of values required to look for outliers among them."""
_MOST_EXCLUDED = 0.25
"""Largest fraction of nights or allocations that can be outliers; more would be a new level."""
_OUTLYING_FAR = 7.0
"""Distance from the median, in standard deviations, beyond which an allocation is an outlier."""
_OUTLYING_NEAREST = 0.02
DEVIATION_OF_MEDIAN = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""
_ODD_FAR, _ODD_RANGES = 0.1, 3.0
"""Smallest distance of an odd value from the others: absolute, and as a multiple of their range."""
_LEAST_DEVIATION = 1e-6


def usual_values(values: Sequence[float]) -> Sequence[float]:
    """Return the values without outliers; all of them if they are few or the outliers are many."""
    far = far_apart(values)
    return [value for i, value in enumerate(values) if i not in far] if far else values


def outlying_allocations(values: Mapping[str, float]) -> dict[str, float]:
    """Return the signed distance of each outlying allocation from the median, by name.

    Callers exclude outliers from the spread, since one bad night could widen it and hide a loss.
    """
    names = [*values]
    return {names[i]: apart for i, apart in far_apart([*values.values()]).items()}


def far_apart(values: Sequence[float]) -> dict[int, float]:
    """Return outliers' signed distances from the median, by index; empty if there are too many."""
    # `level_changes.outlying` relies on the order of nights; it would exclude 3 to 9 times as many.
    if len(values) < _ENOUGH_TO_EXCLUDE:
        return {}
    middle = statistics.median(values)
    if max(values) - middle <= _OUTLYING_NEAREST >= middle - min(values):
        return {}
    apart = [value - middle for value in values]
    usual = DEVIATION_OF_MEDIAN * statistics.median(map(abs, apart))
    far = max(_OUTLYING_NEAREST, _OUTLYING_FAR * usual)
    found = {i: value for i, value in enumerate(apart) if abs(value) > far}
    return found if are_few(found, values) else {}


def are_few(outlying: Sized, values: Sized) -> bool:
    """Return True if outliers are few enough to be left out; a larger group is a new level."""
    return len(outlying) <= _MOST_EXCLUDED * len(values)


def odd_one(values: Sequence[float]) -> int | None:
    """Return the index of the one value far from all others, which agree; None if there is none."""
    for odd, others, apart in _far_ends(values):
        if apart > _ODD_RANGES * (others[-1] - others[0]):
            return odd
    return None


def odd_run(logs: Sequence[float]) -> int | None:
    """Return the index of the one run far from all others; None if there is none.

    Of six normal runs or more, one is far if Grubbs' test finds it in fewer than 1% of such rows.
    """
    if len(logs) < _ENOUGH_TO_EXCLUDE:
        return odd_one(logs)
    for odd, others, _ in _far_ends(logs):
        error = max(statistics.stdev(others), _LEAST_DEVIATION) * math.sqrt(1 + 1 / len(others))
        ratio = abs(logs[odd] - statistics.fmean(others)) / error
        if t_probability(-ratio, len(others) - 1) < SIGNIFICANCE / (2 * len(logs)):
            return odd
    return None


def _far_ends(values: Sequence[float]) -> Iterator[tuple[int, list[float], float]]:
    """Yield each end of the sorted values if far: its index, the other values, the distance."""
    order = sorted(range(len(values)), key=values.__getitem__)
    for odd, rest in ((order[:1], order[1:]), (order[-1:], order[:-1])):
        others = [values[i] for i in rest]
        if len(others) > 1:
            apart = max(others[0] - values[odd[0]], values[odd[0]] - others[-1])
            if apart > _ODD_FAR:
                yield odd[0], others, apart
