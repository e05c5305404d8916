"""The measuring loop: a warm-up, then windows of steps between barriers."""

import math
import statistics
import time
from collections.abc import Callable

from gpuscale.measure.worker.training import Training
from gpuscale.measure.worker.windows import ROUNDING, SYNCED_PER_UNSYNCED, window_plan
from gpuscale.records import TimingPlan
from gpuscale.records.request import Measurement, RankWindow

_PACE_WINDOWS = 5
_PACE_STEPS = 3
_EVENT_S = 20e-6 / 7
"""Seconds of host time to record a CUDA event; a step with one batch needs seven events."""
_SHARE_FOR_MARKS = 0.005

Report = Callable[[str, int, int], None]
"""Function that reports progress: the name of a stage, the amount done, and the total."""


def measure(
    training: Training, timing: TimingPlan, report: Report, *, pausing: bool, loaders: int = 0
) -> Measurement:
    """Warm up, then time windows; every rank runs the same number of steps.

    The slowest rank's pace during the warm-up determines the length of a window, so that all ranks
    agree. If `pausing` is set, windows without gradient synchronisation are timed too. `loaders` is
    the number of loader processes per rank.
    """
    started = time.perf_counter()
    step_time_s, warmup_steps = warm_up(training, timing, report)
    warmup_s = time.perf_counter() - started
    steps, windows = window_plan(step_time_s, timing, pausing=pausing, loaders=loaders)
    # Only the first batch of a burst is late, so all steps must be marked.
    marked_every = 1 if loaders else steps_per_mark(step_time_s, training.clock.events_per_step)
    measured = []
    for number in range(windows):
        report("window", number, windows)
        # Alternate both kinds of windows, so that a drift of the machine affects both. The last
        # window is synchronised, as the checks after the windows require.
        if number % SYNCED_PER_UNSYNCED == 1 and pausing:
            training.remember()
            alone = timed_window(training, steps, synchronized=False, marked_every=marked_every)
            measured.append(alone)
            training.realign()
            # Unsynchronised windows are faster and use up prefetched batches: refill.
            for _ in range(loaders):
                training.step()
        measured.append(timed_window(training, steps, marked_every=marked_every))
    report("window", windows, windows)
    return Measurement(
        warmup_steps=warmup_steps,
        warmup_s=warmup_s,
        steps_per_window=steps,
        windows=tuple(measured),
    )


def own_pace_s(training: Training) -> float:
    """Measure and return this rank's seconds per step without gradient synchronisation."""
    timed_window(training, 1)
    training.remember()
    # Time several steps together: a single step would include all of its kernel launches.
    alone = [timed_window(training, _PACE_STEPS, synchronized=False) for _ in range(_PACE_WINDOWS)]
    training.realign()
    return statistics.median(window.own_s for window in alone) / _PACE_STEPS


def steps_per_mark(step_time_s: float, events: int) -> int:
    """Return the least N so that `events` CUDA events every N steps slow them by at most 0.5%."""
    return max(1, math.ceil(events * _EVENT_S / (_SHARE_FOR_MARKS * step_time_s) - ROUNDING))


def warm_up(training: Training, timing: TimingPlan, report: Report) -> tuple[float, int]:
    """Run warm-up steps until both the number of steps and the duration in the plan are reached.

    Return (the slowest rank's seconds per step at the end of the warm-up, number of steps run).
    """
    report("first step", 0, 1)
    # Loading kernels, autotuning and the first all-reduce can take seconds. They do not count:
    # otherwise a cold start would use up the whole warm-up.
    timed_window(training, 1)
    done, elapsed_s, stretch = 0, 0.0, max(1, timing.warmup_steps)
    while True:
        report("warm-up", done, done + stretch)
        stretch_s = training.strategy.largest(timed_window(training, stretch).busy_s)
        done += stretch
        elapsed_s += stretch_s
        step_time_s = stretch_s / stretch
        if elapsed_s >= timing.warmup_s:
            return step_time_s, done + 1
        # At least the planned number of steps, since the pace of this stretch plans the windows.
        stretch = max(math.ceil((timing.warmup_s - elapsed_s) / step_time_s), timing.warmup_steps)


def timed_window(
    training: Training, steps: int, *, synchronized: bool = True, marked_every: int = 1
) -> RankWindow:
    """Time `steps` steps after a barrier, and the phases of every `marked_every`-th step."""
    training.synchronize()
    training.strategy.barrier()
    # After the barrier, so that samples during the wait for other ranks are left out.
    started_at_s = time.time()
    opened = time.perf_counter()
    training.clock.begin(marked_every)
    for _ in range(steps):
        training.step(synchronized=synchronized)
    training.synchronize()
    busy_s = time.perf_counter() - opened
    return RankWindow(
        started_at_s=started_at_s,
        busy_s=busy_s,
        synchronized=synchronized,
        phases=training.clock.phases(),
    )
