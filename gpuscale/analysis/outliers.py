"""Find outliers: runs, allocations or nights whose values are far from all others."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Sized

from gpuscale.analysis.estimates import SIGNIFICANCE
from gpuscale.analysis.probabilities import t_quantile

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
_OF_FEW = 0.05
"""Fraction of rows of fewer normal runs in which one may stand out by chance."""


def usual_values(values: Sequence[float]) -> Sequence[float]:
    """Return the values without outliers; return all if values are few or outliers are many."""
    far = far_apart(values)
    return [value for i, value in enumerate(values) if i not in far] if far else values


def outlying_allocations(values: Mapping[str, float]) -> dict[str, float]:
    """Return the signed distance of each outlying allocation from the median, by name.

    Callers exclude outliers from the spread, as one bad night could widen it and hide a slowdown.
    """
    names = [*values]
    return {names[i]: apart for i, apart in far_apart([*values.values()]).items()}


def far_apart(values: Sequence[float]) -> dict[int, float]:
    """Return outliers' signed distances from the median, by index; empty if there are too many."""
    # `shifts_and_drifts.outlying` uses the order of nights; it would exclude 3 to 9 times as many.
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
    for odd, others in _ends(values):
        if abs(values[odd] - others[0]) > max(_ODD_FAR, _ODD_RANGES * abs(others[0] - others[-1])):
            return odd
    return None


def odd_run(logs: Sequence[float]) -> int | None:
    """Return the index of the one run far from all others; None if there is none.

    It fails Grubbs' test at 1% (5% for fewer than 6 runs) and is over 10% from the nearest run.
    """
    level = SIGNIFICANCE if len(logs) >= _ENOUGH_TO_EXCLUDE else _OF_FEW
    for odd, others in _ends(logs):
        quantile = t_quantile(1 - level / (2 * len(logs)), len(logs) - 2)
        usual = quantile * statistics.stdev(others) * math.sqrt(1 + 1 / len(others))
        is_far = abs(logs[odd] - statistics.fmean(others)) > usual
        if is_far and abs(logs[odd] - others[0]) > _ODD_FAR:
            return odd
    return None


def _ends(values: Sequence[float]) -> Iterator[tuple[int, list[float]]]:
    """For the minimum and the maximum, yield the index and the other values, nearest first."""
    order = sorted(range(len(values)), key=values.__getitem__)
    for odd, *others in (order, order[::-1]) if len(order) > 2 else ():
        yield odd, [values[i] for i in others]
