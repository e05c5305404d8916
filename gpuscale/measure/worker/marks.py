"""From the arrival of a command's lines to windows of equal numbers of steps."""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuscale.measure.worker.loop import window_plan
from gpuscale.records import TimingPlan
from gpuscale.workload.log_formats import Mark

_TOGETHER_S = 0.002
_BURST_APART_S = 0.05
_ROUNDING = 1e-9
_BURST_SHARE = 0.05


class Point(NamedTuple):
    """The moment at which a step was told."""

    step: float
    at_s: float


class Windows(NamedTuple):
    """Windows as far as lines have come; as many as the plan wants where it is enough."""

    warmup_steps: int
    warmup_s: float
    steps: int
    """Of each."""
    wanted: int
    spans: list[tuple[float, float]]
    """Begin and end of each, in order."""


class Series:
    """The steps that one process has told.

    They are kept in stretches: of one epoch, and without a validation or another loop in between.
    """

    def __init__(self, *, shared: bool) -> None:
        """Takes whether several ranks may print into one pipe: they tell each step again."""
        self._loops: dict[int | None, list[list[Point]]] = {}
        self._latest: deque[float] = deque(maxlen=2 if shared else 1)
        self.figures: list[tuple[float, float]] = []
        """The moment and the figure of each line that reports one, in the format's unit."""
        self._place: tuple[int | None, int | None] | None = None
        """The loop and the epoch of the latest step; None where the next one begins a stretch."""

    def add(self, mark: Mark, step: float, at_s: float) -> None:
        """Take down that a step was told."""
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

    def interrupt(self) -> None:
        """Take down that the time to the next step is not that of training."""
        self._place = None

    @property
    def latest(self) -> float:
        """The last step that was told; 0 before the first."""
        return self._latest[-1] if self._latest else 0

    @property
    def stretches(self) -> list[list[Point]]:
        """Those of the loop that took longest: another one validates, or loads data."""

        def seconds(stretches: Sequence[Sequence[Point]]) -> float:
            return sum(each[-1].at_s - each[0].at_s for each in stretches)

        return max(self._loops.values(), key=seconds, default=[])


def count_of(stretches: Sequence[Sequence[Point]]) -> int:
    """The number of points of all stretches."""
    return sum(map(len, stretches))


def windows_of(stretches: Sequence[Sequence[Point]], timing: TimingPlan) -> Windows | None:
    """The windows that these points tell; None where nothing came after the warm-up."""
    if not stretches:
        return None
    left, warmup_steps, warmup_s = _after_warmup(stretches, timing)
    left = [stretch for stretch in left if len(stretch) > 1]
    if not left:
        return None
    stride = statistics.median_low(
        [later.step - earlier.step for each in left for earlier, later in pairwise(each)]
    )
    told = sum(each[-1].step - each[0].step for each in left)
    stride_s = stride * sum(each[-1].at_s - each[0].at_s for each in left) / told
    strides, wanted = window_plan(max(stride_s, 1e-9), timing, pausing=False)
    # Counters of samples need not come at whole steps.
    steps = math.ceil(strides * stride - _ROUNDING)
    spans = [span for each in left for span in _spans(each, steps)]
    return Windows(warmup_steps, warmup_s, steps, wanted, spans)


def _after_warmup(
    stretches: Sequence[Sequence[Point]], timing: TimingPlan
) -> tuple[list[Sequence[Point]], int, float]:
    """The points from the end of the warm-up on, and its steps and seconds after the first one."""
    first_s, before = stretches[0][0].at_s, 0.0
    for number, stretch in enumerate(stretches):
        for place, point in enumerate(stretch):
            steps, passed_s = before + point.step - stretch[0].step, point.at_s - first_s
            if steps >= timing.warmup_steps and passed_s >= timing.warmup_s:
                return [stretch[place:], *stretches[number + 1 :]], round(steps), passed_s
        before += stretch[-1].step - stretch[0].step
    return [], round(before), stretches[-1][-1].at_s - first_s


def _spans(stretch: Sequence[Point], steps: int) -> Iterator[tuple[float, float]]:
    """Begin and end of each group of so many steps.

    Lines that come every so many steps end them; between others, such as those of a progress bar
    that is drawn now and then, moments are interpolated, and so they are between lines that were
    read at once, such as those that came while this process had to wait for a core.
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
    """True where lines came many at a time, with pauses between: their moments tell nothing.

    Lines of steps that are really that quick follow each other all the time.
    """
    moments = [point.at_s for stretch in stretches for point in stretch]
    bursts: list[list[float]] = []
    for moment in moments:
        if bursts and moment - bursts[-1][-1] < _TOGETHER_S:
            bursts[-1].append(moment)
        else:
            bursts.append([moment])
    # One burst among single lines, such as of steps that were skipped, says nothing of the others.
    if len(moments) < 4 or statistics.median(map(len, bursts)) < 2:
        return False
    busy_s = sum(burst[-1] - burst[0] for burst in bursts)
    if len(bursts) < 3:
        return busy_s < _BURST_SHARE * (moments[-1] - started_s)
    pause_s = statistics.median(b[0] - a[-1] for a, b in pairwise(bursts))
    return pause_s > _BURST_APART_S
