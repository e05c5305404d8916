"""Check whether the windows of a run (spans of steps) agree.

If windows drift, jump or alternate between two levels, their median is meaningless, unless most
windows are on the faster level. Three shapes are fitted to the logarithms of the window times: a
straight line, two levels in succession, and two levels in any order. A shape counts if its change
is at least 5% and many times the residual scatter; at worst about two clean series in a thousand
are called unsteady (docs/evidence/rates.md has the rates, tests/test_steadiness.py checks them).
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

_Kind = Literal["drift", "level", "two levels"]

SHORTEST_JUDGED_S = 0.12
"""Shortest window whose steadiness is judged, in seconds: a single time slice of the operating
system's scheduler is a tenth of it. Windows are longer by default."""
_FEWEST_WINDOWS = 5
_SMALLEST_CHANGE = 0.05
"""Smallest relative change that counts; smaller ones are called steady even if significant."""

_DEVIATION_OF_MEAN_ABSOLUTE = math.sqrt(math.pi / 2)
"""Ratio of the standard deviation to the mean absolute deviation of normal noise."""
_NEEDED: dict[_Kind, tuple[float, float, float]] = {
    "drift": (3.0, 40.0, 3.0),
    "level": (2.4, 33.0, 3.0),
    "two levels": (3.7, 30.0, 4.0),
}
"""Base, rise and origin for each shape. To count, a change must be at least scatter * (base + rise
/ (windows - origin)). The values fit the 99.95% quantiles of clean series of 5 to 30 windows with
the worst noise tried (first-order autoregressive noise, coefficient 0.5)."""
_LARGEST_MINORITY = 0.4
"""Largest tolerated fraction of slow windows; with more, the median of some runs may be slow."""
_LARGEST_BIAS = 0.02
"""Largest tolerated excess of the median of all windows over the median of the faster level."""
_SMALLEST_SCATTER = 1e-6
"""Relative scatter that is always added, so that no series counts as free of scatter."""


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    kind: _Kind
    change: float
    """Change of the logarithm from the first window, or level, to the last."""
    left_over: float
    """Sum of absolute deviations of the windows from the shape."""
    second: tuple[int, ...] = ()
    """Indices of the windows on the slower level (kind `two levels`), or on the later one."""

    def is_clear(self, count: int) -> bool:
        """Return True if the change among `count` windows is large, and far above their scatter."""
        scatter = _DEVIATION_OF_MEAN_ABSOLUTE * self.left_over / (count - 2) + _SMALLEST_SCATTER
        base, rise, origin = _NEEDED[self.kind]
        needed = base + rise / (count - origin)
        size = abs(math.expm1(self.change))
        return size >= _SMALLEST_CHANGE and abs(self.change) >= scatter * needed

    def leaves_median(self, logs: Sequence[float]) -> bool:
        """Return True if the shape has two levels and too few slow windows to shift the median."""
        if self.kind != "two levels" or len(self.second) >= _LARGEST_MINORITY * len(logs):
            return False
        faster = [log for i, log in enumerate(logs) if i not in self.second]
        return statistics.median(logs) - statistics.median(faster) <= math.log1p(_LARGEST_BIAS)


def steadiness(step_times_s: Sequence[float]) -> str | None:
    """Describe unsteady windows, as in `drifts, steps 20% longer by …`; return None if steady.

    `step_times_s` has one value per window, in order of measurement; fewer than 5 are not checked.
    """
    count = len(step_times_s)
    if count < _FEWEST_WINDOWS:
        return None
    logs = [math.log(time_s) for time_s in step_times_s]
    if max(logs) - min(logs) < math.log1p(_SMALLEST_CHANGE):
        return None
    by_size = sorted(range(count), key=logs.__getitem__)
    shapes = (
        _drift(logs),
        *_levels(logs, "level", range(count), parts=5),
        *_levels(logs, "two levels", by_size, parts=4),
    )
    clear = {shape.kind: shape for shape in shapes if shape.is_clear(count)}
    if "level" in clear:
        # Two successive levels also fit as two levels in any order, which absorb outliers better.
        clear.pop("two levels", None)
    if not (doubtful := [shape for shape in clear.values() if not shape.leaves_median(logs)]):
        return None
    return _described(min(doubtful, key=lambda shape: shape.left_over), count)


def _drift(logs: Sequence[float]) -> _Shape:
    """Fit a straight line by the Theil-Sen estimator, which is robust to outliers."""
    count = len(logs)
    slope = statistics.median(
        (logs[j] - logs[i]) / (j - i) for i in range(count) for j in range(i + 1, count)
    )
    _, left_over = _level([log - slope * i for i, log in enumerate(logs)], range(count))
    return _Shape(kind="drift", change=slope * (count - 1), left_over=left_over)


def _levels(
    logs: Sequence[float], kind: _Kind, order: Sequence[int], *, parts: int
) -> Iterator[_Shape]:
    """Yield the split of the windows, taken in `order`, into the two levels that fit them best.

    Yield it only if each level has enough windows nearer to it than to the other one: at least
    1/`parts` of all, and at least 3 (2 if there are fewer than 8 windows).
    """
    shortest = max(2 if len(logs) < 8 else 3, math.ceil(len(logs) / parts))
    cuts = [(order[:cut], order[cut:]) for cut in range(shortest, len(logs) - shortest + 1)]
    before, after = min(cuts, key=lambda both: sum(_level(logs, part)[1] for part in both))
    (first, left_before), (second, left_after) = _level(logs, before), _level(logs, after)
    at_home = [
        sum(abs(logs[i] - own) < abs(logs[i] - other) for i in part)
        for part, own, other in ((before, first, second), (after, second, first))
    ]
    if min(at_home) >= shortest:
        left_over = left_before + left_after
        yield _Shape(kind=kind, change=second - first, left_over=left_over, second=tuple(after))


def _level(logs: Sequence[float], windows: Sequence[int]) -> tuple[float, float]:
    """Return the median of `logs` at these window indices, and the sum of absolute deviations."""
    own = [logs[i] for i in windows]
    median = statistics.median(own)
    return median, math.fsum(abs(log - median) for log in own)


def _described(shape: _Shape, count: int) -> str:
    size = math.expm1(shape.change)
    amount = f"steps {abs(size):.0%} {'longer' if size > 0 else 'shorter'}"
    if shape.kind == "drift":
        return f"drifts, {amount} by window {count} than at window 1"
    if shape.kind == "level":
        return f"second level, {amount} from window {shape.second[0] + 1}"
    return f"two levels, {amount} in {len(shape.second)} of {count} windows than in the others"
