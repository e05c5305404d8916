"""Plan the windows of a run, and divide the steps that a command reports into windows."""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuscale.records import TimingPlan
from gpuscale.workload.step_log_formats import Mark

FEWEST_WINDOWS = 10
SYNCED_PER_UNSYNCED = 3
ROUNDING = 1e-9
"""Tolerance for rounding errors in divisions that should give a whole number."""
_FEWEST_SPEEDS = 3
_TOGETHER_S = 0.002
_BURST_APART_S = 0.05
_BURST_SHARE = 0.05


def window_plan(
    step_time_s: float, timing: TimingPlan, *, pausing: bool, loaders: int = 0
) -> tuple[int, int]:
    """Return the steps per window and the number of synchronised windows for a given step time.

    Windows are shorter than the timing plan requests if ten of them would exceed the time budget.
    `pausing` is True if windows without synchronisation are timed too, in the same budget. Loaders
    deliver batches in bursts of one per loader, so a window is a multiple of `loaders` steps.
    """
    steps = math.ceil(timing.window_s / step_time_s * (1 - ROUNDING))
    fewest = min(FEWEST_WINDOWS, timing.windows)
    ten_steps_s = _all_windows(fewest, pausing=pausing) * step_time_s
    steps = max(1, min(steps, math.floor(timing.run_seconds / ten_steps_s)))
    steps = math.ceil(steps / max(1, loaders)) * max(1, loaders)
    affordable = [
        windows
        for windows in range(fewest, timing.windows + 1)
        if _all_windows(windows, pausing=pausing) * steps * step_time_s <= timing.run_seconds
    ]
    return steps, max(affordable, default=fewest)


def _all_windows(synced: int, *, pausing: bool) -> int:
    return synced + (synced + 1) // SYNCED_PER_UNSYNCED if pausing else synced


class Point(NamedTuple):
    """A step's number, and the arrival time of the line that reported the step."""

    step: int
    at_s: float


class Windows(NamedTuple):
    """The warm-up and the timed windows derived from a command's output so far."""

    warmup_steps: int
    warmup_s: float
    steps: int
    """Steps per window."""
    wanted: int
    """Number of windows that the timing plan requests."""
    spans: list[tuple[float, float]]
    """Start and end of each window in order, in seconds on the monotonic clock."""


class Series:
    """The steps that one process has reported, divided into stretches.

    A stretch lies in one epoch and is not interrupted by a validation or another loop.
    """

    def __init__(self, *, shared: bool) -> None:
        """`shared` is True if several ranks may print each step into one pipe."""
        self._loops: dict[int | None, list[list[Point]]] = {}
        self._latest: deque[int] = deque(maxlen=2 if shared else 1)
        self.speeds: list[tuple[float, float]] = []
        """Arrival time and samples/s of each line that reports samples/s."""
        self._place: tuple[int | None, int | None] | None = None
        """The loop and the epoch of the latest step; None if the next step begins a new stretch."""

    def add(self, mark: Mark, step: int, at_s: float) -> None:
        """Add a step to the latest stretch or, after an interruption, to a new stretch."""
        place = (mark.total_steps, mark.epoch)
        if place == self._place and step in self._latest:
            return
        stretches = self._loops.setdefault(mark.total_steps, [])
        falls = bool(stretches) and step < stretches[-1][-1].step
        if not stretches or place != self._place or falls or mark.validated:
            stretches.append([])
        stretches[-1].append(Point(step, at_s))
        self._place = place
        self._latest.append(step)

    def median_speed(self, begin_s: float, end_s: float) -> float | None:
        """Return the median samples/s reported between two times; None for fewer than 3 reports."""
        within = (speed for at_s, speed in self.speeds if begin_s < at_s <= end_s)
        speeds = [speed for speed in within if 0 < speed < math.inf]
        return statistics.median(speeds) if len(speeds) >= _FEWEST_SPEEDS else None

    def interrupt(self) -> None:
        """Exclude the time until the next step from all windows, as after a validation."""
        self._place = None

    @property
    def latest(self) -> int:
        """The number of the latest step; 0 before the first step."""
        return self._latest[-1] if self._latest else 0

    @property
    def stretches(self) -> list[list[Point]]:
        """The stretches of the longest loop, which is taken to be the training loop."""

        def seconds(stretches: Sequence[Sequence[Point]]) -> float:
            return sum(points[-1].at_s - points[0].at_s for points in stretches)

        return max(self._loops.values(), key=seconds, default=[])

    @property
    def count(self) -> int:
        """The number of steps reported in `stretches`."""
        return sum(map(len, self.stretches))


def windows_of(stretches: Sequence[Sequence[Point]], timing: TimingPlan) -> Windows | None:
    """Divide the steps after the warm-up into windows; return None if there are too few steps."""
    if (warmed_up := _after_warmup(stretches, timing)) is None:
        return None
    rest, warmup_steps, warmup_s = warmed_up
    if not (left := [stretch for stretch in rest if len(stretch) > 1]):
        return None
    stride = statistics.median_low(
        [later.step - earlier.step for points in left for earlier, later in pairwise(points)]
    )
    steps_done = sum(points[-1].step - points[0].step for points in left)
    stride_s = stride * sum(points[-1].at_s - points[0].at_s for points in left) / steps_done
    strides, wanted = window_plan(max(stride_s, 1e-9), timing, pausing=False)
    steps = strides * stride
    spans = [span for points in left for span in _spans(points, steps)]
    return Windows(warmup_steps, warmup_s, steps, wanted, spans)


def _after_warmup(
    stretches: Sequence[Sequence[Point]], timing: TimingPlan
) -> tuple[list[Sequence[Point]], int, float] | None:
    """Return (stretches after warm-up, warm-up steps, warm-up seconds); None during the warm-up."""
    first_s, before = stretches[0][0].at_s, 0
    for number, stretch in enumerate(stretches):
        for place, point in enumerate(stretch):
            steps, passed_s = before + point.step - stretch[0].step, point.at_s - first_s
            if steps >= timing.warmup_steps and passed_s >= timing.warmup_s:
                return [stretch[place:], *stretches[number + 1 :]], steps, passed_s
        before += stretch[-1].step - stretch[0].step
    return None


def _spans(stretch: Sequence[Point], steps: int) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each group of `steps` steps.

    If no line arrives at the end of a group, the end time is interpolated, as between updates of a
    progress bar. If several lines are read at the same time, only the last line counts.
    """
    last_of_each_time = [point for point, after in pairwise(stretch) if point.at_s < after.at_s]
    stretch = [*last_of_each_time, stretch[-1]]
    begin_s, until = stretch[0].at_s, stretch[0].step + steps
    for earlier, later in pairwise(stretch):
        while later.step >= until:
            share = (until - earlier.step) / (later.step - earlier.step)
            end_s = earlier.at_s + share * (later.at_s - earlier.at_s)
            yield begin_s, end_s
            begin_s, until = end_s, until + steps


def comes_in_bursts(stretches: Sequence[Sequence[Point]], started_s: float) -> bool:
    """Return True if lines arrived in bursts, so arrival times do not show when steps ended.

    Lines of very fast steps arrive close together too, but without pauses between groups.
    """
    moments = [point.at_s for stretch in stretches for point in stretch]
    bursts: list[list[float]] = []
    for moment in moments:
        if bursts and moment - bursts[-1][-1] < _TOGETHER_S:
            bursts[-1].append(moment)
        else:
            bursts.append([moment])
    # One burst among single lines, such as after skipped steps, does not invalidate the rest.
    if len(moments) < 4 or statistics.median(map(len, bursts)) < 2:
        return False
    busy_s = sum(burst[-1] - burst[0] for burst in bursts)
    if len(bursts) < 3:
        return busy_s < _BURST_SHARE * (moments[-1] - started_s)
    return statistics.median(b[0] - a[-1] for a, b in pairwise(bursts)) > _BURST_APART_S
