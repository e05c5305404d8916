"""The phases of a step, timed without synchronising in between."""

import time
from enum import IntEnum

import torch

from gpuscale.records import Phases


class Phase(IntEnum):
    """A rank's work between two marks, in the order of the fields of `Phases`."""

    DATA = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    WAIT = 5


class PhaseClock:
    """Times the phases of a window, in all of its steps or in one of several."""

    def __init__(self) -> None:
        self.begin(1)

    def begin(self, marked_every: int) -> None:
        """Start a window whose first step is marked, and each `marked_every`-th after it."""
        self._marked_every = marked_every
        self._steps = 0
        self._marked_steps = self._marks = 0
        self._is_marking = False
        self._begin_marks()

    def begin_step(self) -> None:
        """Begin a step."""
        was_marking, self._is_marking = self._is_marking, self._steps % self._marked_every == 0
        self._steps += 1
        self._marked_steps += self._is_marking
        # Two marked steps in a row have no gap between them.
        if self._is_marking and not was_marking:
            self._restart()

    def mark(self, phase: Phase) -> None:
        """Count the time since the last mark as this phase."""
        if self._is_marking:
            self._marks += 1
            self._mark(phase)

    @property
    def events_per_step(self) -> int:
        """The number of marks of a marked step since `begin`, with the one at its start."""
        return 1 + round(self._marks / max(1, self._marked_steps))

    def phases(self) -> Phases:
        """The phases since `begin`, in seconds, extrapolated from the marked steps to all."""
        share = self._marked_steps / max(1, self._steps)
        seconds = [phase_s / (share or 1.0) for phase_s in self._seconds_of_marks()]
        return Phases(**dict(zip(Phases.__struct_fields__, seconds, strict=True)))

    def _begin_marks(self) -> None:
        raise NotImplementedError

    def _restart(self) -> None:
        """Count the next mark from here instead of from the last mark."""
        raise NotImplementedError

    def _mark(self, phase: Phase) -> None:
        raise NotImplementedError

    def _seconds_of_marks(self) -> list[float]:
        """The seconds of each phase."""
        raise NotImplementedError


class HostPhaseClock(PhaseClock):
    """A clock for the CPU, where work is done when a call returns."""

    def _begin_marks(self) -> None:
        self._seconds = [0.0] * len(Phase)
        self._restart()

    def _restart(self) -> None:
        self._last_s = time.perf_counter()

    def _mark(self, phase: Phase) -> None:
        now_s = time.perf_counter()
        self._seconds[phase] += now_s - self._last_s
        self._last_s = now_s

    def _seconds_of_marks(self) -> list[float]:
        return self._seconds


class CudaPhaseClock(PhaseClock):
    """A clock for CUDA: events on the current stream, read after the window, when all are passed.

    The device passes an event when it has done all work enqueued before it. If the host is late, as
    with slow data, the device waits, and the wait lies between the same two events.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: list[torch.cuda.Event] = []
        super().__init__()

    def _begin_marks(self) -> None:
        self._ended_by_event: list[Phase | None] = []

    def _restart(self) -> None:
        self._record(None)

    def _mark(self, phase: Phase) -> None:
        self._record(phase)

    def _record(self, phase: Phase | None) -> None:
        number = len(self._ended_by_event)
        if number == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        self._pool[number].record(torch.cuda.current_stream(self._device))
        self._ended_by_event.append(phase)

    def _seconds_of_marks(self) -> list[float]:
        seconds = [0.0] * len(Phase)
        for number, phase in enumerate(self._ended_by_event):
            if phase is not None:
                elapsed_ms = self._pool[number - 1].elapsed_time(self._pool[number])
                seconds[phase] += elapsed_ms / 1000
        return seconds


def phase_clock(device: torch.device) -> PhaseClock:
    """The clock for steps on a device."""
    return CudaPhaseClock(device) if device.type == "cuda" else HostPhaseClock()
