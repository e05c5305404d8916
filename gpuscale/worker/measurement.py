"""The measuring loop: warm-up, then windows of steps between barriers."""

import math
import statistics
import time
from dataclasses import dataclass
from typing import Protocol

from gpuscale.records import Pacing, Phases, RankWindow

_FEWEST_WINDOWS = 10
_PACE_STEPS = 7
_SYNCED_PER_UNSYNCED = 3


class Stepper(Protocol):
    """What is measured: something that makes steps and can wait for its device."""

    def step(self, *, synchronized: bool = True) -> None:
        """Make one step; it may return before the device is done."""
        ...

    def synchronize(self) -> None:
        """Return once the device is done."""
        ...

    def begin_window(self) -> None:
        """Start to take the phases of a window."""
        ...

    def phases(self) -> Phases:
        """The phases since `begin_window`, in seconds."""
        ...

    def remember(self) -> None:
        """Prepare for steps that are not synchronised."""
        ...

    def realign(self) -> None:
        """Undo what steps without synchronisation did to the ranks' agreement."""
        ...


class Peers(Protocol):
    """The other ranks, as far as measuring must agree with them."""

    @property
    def can_pause_synchronization(self) -> bool:
        """Whether steps without synchronisation mean anything."""
        ...

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
    windows: tuple[RankWindow, ...]

    def pace_s(self) -> float:
        """Median seconds per step of this rank alone, where windows tell it."""
        alone = [w for w in self.windows if not w.synchronized] or self.windows
        return statistics.median(window.busy_s for window in alone) / self.steps_per_window

    def phases_per_step(self) -> Phases:
        """Median of each phase over the synchronised windows, in seconds per step."""
        phases = [window.phases for window in self.windows if window.synchronized]
        return Phases(
            data_s=statistics.median(p.data_s for p in phases),
            h2d_s=statistics.median(p.h2d_s for p in phases),
            forward_s=statistics.median(p.forward_s for p in phases),
            backward_s=statistics.median(p.backward_s for p in phases),
            optimizer_s=statistics.median(p.optimizer_s for p in phases),
        ).scaled(1 / self.steps_per_window)


def measure(training: Stepper, peers: Peers, pacing: Pacing, progress: Progress) -> Measurement:
    """Warm up and time windows; every rank makes the same steps.

    The window length follows from the slowest rank's pace in warm-up, so all ranks agree on it.
    """
    started = time.perf_counter()
    step_time_s, warmup_steps = warm_up(training, peers, pacing, progress)
    warmup_s = time.perf_counter() - started
    steps, windows = window_plan(step_time_s, pacing)
    measured = []
    for number in range(windows):
        progress.report("window", number, windows)
        # In turn, so that both see the same machine; the last one is synchronised training,
        # which is what the checks after the windows look at.
        if number % _SYNCED_PER_UNSYNCED == 1 and peers.can_pause_synchronization:
            training.remember()
            measured.append(timed_window(training, peers, steps, synchronized=False))
            training.realign()
        measured.append(timed_window(training, peers, steps, synchronized=True))
    progress.report("window", windows, windows)
    return Measurement(
        warmup_steps=warmup_steps,
        warmup_s=warmup_s,
        steps_per_window=steps,
        windows=tuple(measured),
    )


def own_pace_s(training: Stepper, peers: Peers) -> float:
    """Seconds per step of this rank alone, before anything is measured."""
    _timed_steps(training, peers, 1)
    training.remember()
    times_s = [_timed_steps(training, peers, 1, synchronized=False) for _ in range(_PACE_STEPS)]
    training.realign()
    return statistics.median(times_s)


def window_plan(step_time_s: float, pacing: Pacing) -> tuple[int, int]:
    """Steps per window and number of windows for a pace, within the budget of the run."""
    steps = max(1, round(pacing.window_s / step_time_s))
    affordable = math.floor(pacing.run_seconds / (steps * step_time_s))
    return steps, max(_FEWEST_WINDOWS, min(pacing.windows, affordable))


def warm_up(
    training: Stepper, peers: Peers, pacing: Pacing, progress: Progress
) -> tuple[float, int]:
    """Step until both limits have passed.

    Returns:
        The pace of the last stretch, in seconds per step, the same on every rank; and the steps.
    """
    progress.report("first step", 0, 1)
    # Loading kernels, autotuning and the first all-reduce can take seconds: outside the
    # warm-up's count, or a cold start would be all the warm-up there is.
    _timed_steps(training, peers, 1)
    done, elapsed_s, stretch = 0, 0.0, max(1, pacing.warmup_steps)
    while True:
        progress.report("warm-up", done, done + stretch)
        stretch_s = peers.largest(_timed_steps(training, peers, stretch))
        done += stretch
        elapsed_s += stretch_s
        step_time_s = stretch_s / stretch
        if elapsed_s >= pacing.warmup_s:
            return step_time_s, done + 1
        stretch = math.ceil((pacing.warmup_s - elapsed_s) / step_time_s)


def timed_window(training: Stepper, peers: Peers, steps: int, *, synchronized: bool) -> RankWindow:
    """One window: so many steps from a barrier to this rank's synchronisation."""
    started_at_s = time.time()
    busy_s = _timed_steps(training, peers, steps, synchronized=synchronized)
    return RankWindow(
        started_at_s=started_at_s,
        busy_s=busy_s,
        synchronized=synchronized,
        phases=training.phases(),
    )


def _timed_steps(
    training: Stepper, peers: Peers, steps: int, *, synchronized: bool = True
) -> float:
    """Seconds that this rank was busy with so many steps, from a common start."""
    training.synchronize()
    peers.barrier()
    opened = time.perf_counter()
    training.begin_window()
    for _ in range(steps):
        training.step(synchronized=synchronized)
    training.synchronize()
    return time.perf_counter() - opened
