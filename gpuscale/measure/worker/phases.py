"""Time the phases of a step without synchronising with the device between phases."""

import time
from enum import IntEnum
from itertools import pairwise
from typing import Any

import torch

from gpuscale.records import Phases


class Phase(IntEnum):
    """A kind of work in a rank's step; the members are in the order of the fields of `Phases`."""

    DATA = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    WAIT = 5


class PhaseClock:
    """Times the phases of a window, in all steps or only in one of every few steps."""

    def __init__(self) -> None:
        self.begin(1)

    def begin(self, marked_every: int) -> None:
        """Start a window; mark the first step and then one of every `marked_every` steps."""
        self._marked_every = marked_every
        self._steps = self._marked_steps = 0
        self._is_marking = False
        self._marks: list[tuple[Any, Phase | None]] = []
        """Moments, each with the phase that ends then; None at the beginning of a step."""

    def begin_step(self) -> None:
        """Begin a step, and mark the start if this step is to be marked."""
        was_marking, self._is_marking = self._is_marking, self._steps % self._marked_every == 0
        self._steps += 1
        self._marked_steps += self._is_marking
        # Two marked steps in a row have no gap between them.
        if self._is_marking and not was_marking:
            self._marks.append((self._now(), None))

    def mark(self, phase: Phase) -> None:
        """Attribute the time since the last mark to this phase."""
        if self._is_marking:
            self._marks.append((self._now(), phase))

    @property
    def events_per_step(self) -> int:
        """Number of marks per marked step since `begin`, including the mark at its start."""
        marks = sum(phase is not None for _, phase in self._marks)
        return 1 + round(marks / max(1, self._marked_steps))

    def phases(self) -> Phases:
        """Return the seconds spent in each phase since `begin`, extrapolated to all steps."""
        seconds = [0.0] * len(Phase)
        share = self._marked_steps / max(1, self._steps)
        for (earlier, _), (later, phase) in pairwise(self._marks):
            if phase is not None:
                seconds[phase] += self._seconds(earlier, later) / share
        return Phases(**dict(zip(Phases.__struct_fields__, seconds, strict=True)))

    def _now(self) -> Any:
        raise NotImplementedError

    def _seconds(self, earlier: Any, later: Any) -> float:
        raise NotImplementedError


class HostPhaseClock(PhaseClock):
    """A clock for training on CPU, where a call returns only once its work is done."""

    def _now(self) -> float:
        return time.perf_counter()

    def _seconds(self, earlier: float, later: float) -> float:
        return later - earlier


class CudaPhaseClock(PhaseClock):
    """A clock for CUDA, which records events on the current stream and reads them after the window.

    The device completes an event when it has done all work enqueued before. If the host is late, as
    with slow data, the device waits, and the wait counts between the same two events.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: list[torch.cuda.Event] = []
        super().__init__()

    def _now(self) -> torch.cuda.Event:
        if len(self._marks) == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        event = self._pool[len(self._marks)]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1000


def phase_clock(device: torch.device) -> PhaseClock:
    """Return the clock for training steps on a device."""
    return CudaPhaseClock(device) if device.type == "cuda" else HostPhaseClock()
