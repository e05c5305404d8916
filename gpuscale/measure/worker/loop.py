"""The measuring loop: a warm-up, then windows of steps between barriers."""

import math
import statistics
import time
from collections.abc import Callable
from typing import Protocol

from gpuscale.records import Phases, TimingPlan
from gpuscale.records.request import Measurement, RankWindow

_FEWEST_WINDOWS = 10
_PACE_WINDOWS = 5
_PACE_STEPS = 3
_EVENT_S = 20e-6 / 7
"""Seconds of host time to record a CUDA event; a step with one batch needs seven events."""
_SHARE_FOR_MARKS = 0.005
_SYNCED_PER_UNSYNCED = 3
_ROUNDING = 1e-9
"""Tolerance for rounding errors in a division whose result should be a whole number."""

Report = Callable[[str, int, int], None]
"""Function that reports progress: the name of a stage, the amount done, and the total."""


class Stepper(Protocol):
    """A training to be measured, which makes steps and can wait for the device."""

    def step(self, *, synchronized: bool = True) -> None:
        """Make one step; the call may return before the device is done."""

    def synchronize(self) -> None:
        """Return once the device is done."""

    def begin_window(self, *, marked_every: int) -> None:
        """Start a window in which one of every `marked_every` steps has its phases timed."""

    def phases(self) -> Phases:
        """Return the seconds spent in each phase since `begin_window`."""

    @property
    def events_per_step(self) -> int:
        """The number of events that mark the phases of a step."""

    def remember(self) -> None:
        """Save the state that `realign` restores, before steps without synchronisation."""

    def realign(self) -> None:
        """Bring all ranks back into agreement after steps without synchronisation."""


class Peers(Protocol):
    """The other ranks of a run, with which a measurement is coordinated."""

    def barrier(self) -> None:
        """Return once every rank has reached this point."""

    def largest(self, value: float) -> float:
        """Return the largest of all ranks' values, which is the same on every rank."""


def measure(
    training: Stepper,
    peers: Peers,
    timing: TimingPlan,
    report: Report,
    *,
    pausing: bool,
    loaders: int = 0,
) -> Measurement:
    """Warm up, then time windows; every rank makes the same number of steps.

    The slowest rank's pace during the warm-up determines the length of a window, so that all ranks
    agree. If `pausing` is set, windows without gradient synchronisation are timed too. `loaders` is
    the number of loader processes per rank.
    """
    started = time.perf_counter()
    step_time_s, warmup_steps = warm_up(training, peers, timing, report)
    warmup_s = time.perf_counter() - started
    steps, windows = window_plan(step_time_s, timing, pausing=pausing, loaders=loaders)
    # Only the first batch of a burst is late, so all steps must be marked.
    marked_every = 1 if loaders else steps_per_mark(step_time_s, training.events_per_step)
    measured = []
    for number in range(windows):
        report("window", number, windows)
        # In turn, so that both see the same machine. The last window is synchronised training,
        # which the checks after the windows need.
        if number % _SYNCED_PER_UNSYNCED == 1 and pausing:
            training.remember()
            measured.append(
                timed_window(training, peers, steps, synchronized=False, marked_every=marked_every)
            )
            training.realign()
            # Windows without synchronisation are faster, and use up batches made in advance.
            for _ in range(loaders):
                training.step()
        measured.append(timed_window(training, peers, steps, marked_every=marked_every))
    report("window", windows, windows)
    return Measurement(
        warmup_steps=warmup_steps,
        warmup_s=warmup_s,
        steps_per_window=steps,
        windows=tuple(measured),
    )


def own_pace_s(training: Stepper, peers: Peers) -> float:
    """Measure the seconds per step of this rank alone, without synchronisation."""
    timed_window(training, peers, 1)
    training.remember()
    # Several steps each: a single step would include all of its kernel launches.
    alone = [
        timed_window(training, peers, _PACE_STEPS, synchronized=False) for _ in range(_PACE_WINDOWS)
    ]
    training.realign()
    return statistics.median(window.own_s for window in alone) / _PACE_STEPS


def steps_per_mark(step_time_s: float, events: int) -> int:
    """Return N such that marking one of every N steps takes at most 0.5% of the time."""
    return max(1, math.ceil(events * _EVENT_S / (_SHARE_FOR_MARKS * step_time_s) - _ROUNDING))


def window_plan(
    step_time_s: float, timing: TimingPlan, *, pausing: bool, loaders: int = 0
) -> tuple[int, int]:
    """Return the steps per window and the number of synchronised windows for a given pace.

    Windows are as long as the timing plan requests, or shorter if ten of them would exceed the time
    budget of the run. If ten single steps exceed it, there are ten windows of one step regardless.
    Windows without synchronisation count against the same budget.

    Loader processes start together and take equally long, so batches arrive in bursts. A window
    holds whole bursts; otherwise some windows would contain a burst and others only a wait.
    """
    steps = math.ceil(timing.window_s / step_time_s * (1 - _ROUNDING))
    fewest = min(_FEWEST_WINDOWS, timing.windows)
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
    """Return the total number of windows, including those without synchronisation."""
    return synced + (synced + 1) // _SYNCED_PER_UNSYNCED if pausing else synced


def warm_up(
    training: Stepper, peers: Peers, timing: TimingPlan, report: Report
) -> tuple[float, int]:
    """Make steps until both the steps and the seconds of the plan's warm-up have passed.

    Returns the seconds per step at the end, the same on every rank, and the number of steps made.
    """
    report("first step", 0, 1)
    # Loading kernels, autotuning and the first all-reduce can take seconds. They do not count, or a
    # cold start would use up the whole warm-up.
    timed_window(training, peers, 1)
    done, elapsed_s, stretch = 0, 0.0, max(1, timing.warmup_steps)
    while True:
        report("warm-up", done, done + stretch)
        stretch_s = peers.largest(timed_window(training, peers, stretch).busy_s)
        done += stretch
        elapsed_s += stretch_s
        step_time_s = stretch_s / stretch
        if elapsed_s >= timing.warmup_s:
            return step_time_s, done + 1
        # Never fewer steps than the plan asks for: the pace of this stretch plans the windows.
        missing = math.ceil((timing.warmup_s - elapsed_s) / step_time_s)
        stretch = max(missing, 1, timing.warmup_steps)


def timed_window(
    training: Stepper,
    peers: Peers,
    steps: int,
    *,
    synchronized: bool = True,
    marked_every: int = 1,
) -> RankWindow:
    """Time one window of steps, from a barrier until this rank's device is done."""
    training.synchronize()
    peers.barrier()
    # After the barrier: telemetry during the wait for other ranks is no part of the window.
    started_at_s = time.time()
    opened = time.perf_counter()
    training.begin_window(marked_every=marked_every)
    for _ in range(steps):
        training.step(synchronized=synchronized)
    training.synchronize()
    busy_s = time.perf_counter() - opened
    return RankWindow(
        started_at_s=started_at_s,
        busy_s=busy_s,
        synchronized=synchronized,
        phases=training.phases(),
    )
