"""The measuring loop: warm-up, then windows of steps between barriers."""

import math
import time
from dataclasses import dataclass
from typing import Protocol

from gpuscale.records import Pacing

_FEWEST_WINDOWS = 5


class Stepper(Protocol):
    """What is measured: something that makes steps and can wait for its device."""

    def step(self) -> None:
        """Make one step; it may return before the device is done."""
        ...

    def synchronize(self) -> None:
        """Return once the device is done."""
        ...


class Peers(Protocol):
    """The other ranks, as far as measuring must agree with them."""

    def barrier(self) -> None:
        """Return once every rank has come here."""
        ...

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, the same on every rank."""
        ...


class Progress(Protocol):
    """Somebody who wants to know how far the run is."""

    def report(self, stage: str, done: int, total: int) -> None:
        """Take note of a stage and how much of it is done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one rank's clock saw."""

    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    started_at_s: tuple[float, ...]
    """Unix time at the opening of each window."""
    busy_s: tuple[float, ...]
    """Seconds from the opening barrier to this rank's synchronisation, by window."""


def measure(training: Stepper, peers: Peers, pacing: Pacing, progress: Progress) -> Measurement:
    """Warm up and time windows; every rank makes the same steps.

    The window length follows from the slowest rank's pace in warm-up, so all ranks agree on it.
    """
    progress.report("first step", 0, 1)
    started = time.perf_counter()
    # Loading kernels, autotuning and the first all-reduce can take seconds: outside the
    # warm-up's count, or a cold start would be all the warm-up there is.
    _timed_steps(training, peers, 1)
    step_time_s, warmup_steps = _warm_up(training, peers, pacing, progress)
    warmup_s = time.perf_counter() - started
    steps, windows = window_plan(step_time_s, pacing)
    started_at_s, busy_s = [], []
    for window in range(windows):
        progress.report("window", window, windows)
        started_at_s.append(time.time())
        busy_s.append(_timed_steps(training, peers, steps))
    progress.report("window", windows, windows)
    return Measurement(
        warmup_steps=warmup_steps + 1,
        warmup_s=warmup_s,
        steps_per_window=steps,
        started_at_s=tuple(started_at_s),
        busy_s=tuple(busy_s),
    )


def window_plan(step_time_s: float, pacing: Pacing) -> tuple[int, int]:
    """Steps per window and number of windows for a pace, within the budget of the run."""
    steps = max(1, round(pacing.window_s / step_time_s))
    affordable = math.floor(pacing.run_seconds / (steps * step_time_s))
    return steps, max(_FEWEST_WINDOWS, min(pacing.windows, affordable))


def _warm_up(
    training: Stepper, peers: Peers, pacing: Pacing, progress: Progress
) -> tuple[float, int]:
    """Step until both limits have passed; the pace of the last stretch, in seconds per step."""
    done, elapsed_s, stretch = 0, 0.0, max(1, pacing.warmup_steps)
    while True:
        progress.report("warm-up", done, done + stretch)
        stretch_s = peers.largest(_timed_steps(training, peers, stretch))
        done += stretch
        elapsed_s += stretch_s
        step_time_s = stretch_s / stretch
        if elapsed_s >= pacing.warmup_s:
            return step_time_s, done
        stretch = math.ceil((pacing.warmup_s - elapsed_s) / step_time_s)


def _timed_steps(training: Stepper, peers: Peers, steps: int) -> float:
    """Seconds that this rank was busy with so many steps, from a common start."""
    training.synchronize()
    peers.barrier()
    opened = time.perf_counter()
    for _ in range(steps):
        training.step()
    training.synchronize()
    return time.perf_counter() - opened
