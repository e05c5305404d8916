"""Time the phases of a step without synchronising with the device between phases."""

import time
from enum import IntEnum
from itertools import pairwise
from typing import Any

import torch

from gpuscale.records.evidence import Phases


class Phase(IntEnum):
    """A kind of work in a rank's step; the members are in the order of the fields of `Phases`."""

    DATA = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    WAIT = 5


class PhaseClock:
    """Times the phases of every step, or of every Nth step, in a window.

    On CUDA, events are recorded on the current stream and read after the window. The device
    completes an event when it has done all work enqueued before the event. If the host is late, as
    with slow data, the device waits, and the time between two events includes the wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: list[torch.cuda.Event] = []
        self.begin(1)

    def begin(self, marked_every: int) -> None:
        """Start a window; time the phases of every `marked_every`-th step, from the first on."""
        self._marked_every = marked_every
        self._steps = self._marked_steps = 0
        self._is_marking = False
        self._marks: list[tuple[Any, Phase | None]] = []
        """Times, each with the phase that ended then, or None for the start of a step."""

    def begin_step(self) -> None:
        """Begin a step, and record the start time if the phases of this step are to be timed."""
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
        """Mean number of marks in a timed step since `begin`, including one at the step's start."""
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
        """Return the time now or, on CUDA, a recorded event that the device will timestamp."""
        if self._device.type != "cuda":
            return time.perf_counter()
        if len(self._marks) == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        event = self._pool[len(self._marks)]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _seconds(self, earlier: Any, later: Any) -> float:
        if self._device.type != "cuda":
            return float(later - earlier)
        return float(earlier.elapsed_time(later)) / 1000
