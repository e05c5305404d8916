"""Turn the arrival times of a command's lines into windows with equal numbers of steps."""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuscale.measure.worker.loop import window_plan
from gpuscale.records import TimingPlan
from gpuscale.workload.log_formats import Mark

_FEWEST_FIGURES = 3
_TOGETHER_S = 0.002
_BURST_APART_S = 0.05
_ROUNDING = 1e-9
_BURST_SHARE = 0.05


class Point(NamedTuple):
    """A step's number, and the arrival time of the line that reported the step."""

    step: float
    at_s: float


class Windows(NamedTuple):
    """The warm-up and the windows that have been found in the lines so far."""

    warmup_steps: int
    warmup_s: float
    steps: int
    """Steps per window."""
    wanted: int
    """Number of windows that the timing plan requests."""
    spans: list[tuple[float, float]]
    """Start and end of each window, in order."""


class Series:
    """The steps that one process has reported, divided into stretches.

    A stretch lies in one epoch and is not interrupted by a validation or another loop.
    """

    def __init__(self, *, shared: bool) -> None:
        """`shared` is True if several ranks may print each step into one pipe."""
        self._loops: dict[int | None, list[list[Point]]] = {}
        self._latest: deque[float] = deque(maxlen=2 if shared else 1)
        self.figures: list[tuple[float, float]] = []
        """Arrival time and reported speed of each line with a speed, in the unit of the format."""
        self._place: tuple[int | None, int | None] | None = None
        """The loop and the epoch of the latest step; None if the next step begins a new stretch."""

    def add(self, mark: Mark, step: float, at_s: float) -> None:
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

    def median_figure(self, begin_s: float, end_s: float) -> float | None:
        """Return the median speed reported between two times; None if too few lines report it."""
        figures = [
            figure
            for at_s, figure in self.figures
            if begin_s < at_s <= end_s and math.isfinite(figure) and figure > 0
        ]
        return statistics.median(figures) if len(figures) >= _FEWEST_FIGURES else None

    def interrupt(self) -> None:
        """Leave the time until the next step out of all windows, as after a validation."""
        self._place = None

    @property
    def latest(self) -> float:
        """The number of the latest step; 0 before the first step."""
        return self._latest[-1] if self._latest else 0

    @property
    def stretches(self) -> list[list[Point]]:
        """The stretches of the loop that takes longest; other loops validate or load data."""

        def seconds(stretches: Sequence[Sequence[Point]]) -> float:
            return sum(points[-1].at_s - points[0].at_s for points in stretches)

        return max(self._loops.values(), key=seconds, default=[])


def count_of(stretches: Sequence[Sequence[Point]]) -> int:
    """Return the number of points in all stretches."""
    return sum(map(len, stretches))


def windows_of(stretches: Sequence[Sequence[Point]], timing: TimingPlan) -> Windows | None:
    """Divide the points after the warm-up into windows; None before the end of the warm-up."""
    if not stretches:
        return None
    left, warmup_steps, warmup_s = _after_warmup(stretches, timing)
    left = [stretch for stretch in left if len(stretch) > 1]
    if not left:
        return None
    stride = statistics.median_low(
        [later.step - earlier.step for points in left for earlier, later in pairwise(points)]
    )
    told = sum(points[-1].step - points[0].step for points in left)
    stride_s = stride * sum(points[-1].at_s - points[0].at_s for points in left) / told
    strides, wanted = window_plan(max(stride_s, 1e-9), timing, pausing=False)
    # Counters of samples need not come at whole steps.
    steps = math.ceil(strides * stride - _ROUNDING)
    spans = [span for points in left for span in _spans(points, steps)]
    return Windows(warmup_steps, warmup_s, steps, wanted, spans)


def _after_warmup(
    stretches: Sequence[Sequence[Point]], timing: TimingPlan
) -> tuple[list[Sequence[Point]], int, float]:
    """Return the points after the warm-up, and the steps and seconds of the warm-up."""
    first_s, before = stretches[0][0].at_s, 0.0
    for number, stretch in enumerate(stretches):
        for place, point in enumerate(stretch):
            steps, passed_s = before + point.step - stretch[0].step, point.at_s - first_s
            if steps >= timing.warmup_steps and passed_s >= timing.warmup_s:
                return [stretch[place:], *stretches[number + 1 :]], round(steps), passed_s
        before += stretch[-1].step - stretch[0].step
    return [], round(before), stretches[-1][-1].at_s - first_s


def _spans(stretch: Sequence[Point], steps: int) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each group of `steps` steps.

    If no line arrives at the end of a group, the end time is interpolated, as between updates of a
    progress bar. Of lines read at the same time, as after a wait for a CPU core, the last counts.
    """
    stretch = [
        *(point for point, after in pairwise(stretch) if point.at_s < after.at_s),
        stretch[-1],
    ]
    begin_s, until = stretch[0].at_s, stretch[0].step + steps
    for earlier, later in pairwise(stretch):
        while later.step >= until:
            share = (until - earlier.step) / (later.step - earlier.step)
            end_s = earlier.at_s + share * (later.at_s - earlier.at_s)
            yield begin_s, end_s
            begin_s, until = end_s, until + steps


def comes_in_bursts(stretches: Sequence[Sequence[Point]], started_s: float) -> bool:
    """Return True if lines arrived in bursts, so that arrival times say nothing about steps.

    If steps really were as fast as in a burst, lines would arrive without pauses.
    """
    moments = [point.at_s for stretch in stretches for point in stretch]
    bursts: list[list[float]] = []
    for moment in moments:
        if bursts and moment - bursts[-1][-1] < _TOGETHER_S:
            bursts[-1].append(moment)
        else:
            bursts.append([moment])
    # One burst among single lines, such as of skipped steps, does not discredit the others.
    if len(moments) < 4 or statistics.median(map(len, bursts)) < 2:
        return False
    busy_s = sum(burst[-1] - burst[0] for burst in bursts)
    if len(bursts) < 3:
        return busy_s < _BURST_SHARE * (moments[-1] - started_s)
    pause_s = statistics.median(b[0] - a[-1] for a, b in pairwise(bursts))
    return pause_s > _BURST_APART_S
