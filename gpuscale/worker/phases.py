"""Clocks that tell the phases of a window without synchronising inside it."""

import time
from enum import IntEnum
from typing import Protocol

import torch

from gpuscale.records import Phases


class Phase(IntEnum):
    """What a rank does between two marks."""

    DATA = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


class PhaseClock(Protocol):
    """Takes the time between marks."""

    def begin(self) -> None:
        """Start a window."""
        ...

    def mark(self, phase: Phase) -> None:
        """The time since the last mark was spent in this phase."""
        ...

    def phases(self) -> Phases:
        """The phases since `begin`, in seconds; to be asked after the device is done."""
        ...


class HostPhaseClock:
    """For the CPU, where work is done when a call returns."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a window."""
        self._seconds = [0.0] * len(Phase)
        self._last_s = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        """The time since the last mark was spent in this phase."""
        now_s = time.perf_counter()
        self._seconds[phase] += now_s - self._last_s
        self._last_s = now_s

    def phases(self) -> Phases:
        """The phases since `begin`, in seconds."""
        return _phases(self._seconds)


class CudaPhaseClock:
    """For CUDA: events on the current stream, read after the window.

    An event is passed when the device has done what was asked before it. Where the host is
    late, as with slow data, the device waits, and the wait lies between the same two events.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: list[torch.cuda.Event] = []
        self._marks: list[Phase] = []

    def begin(self) -> None:
        """Start a window."""
        self._marks = []
        self._record(0)

    def mark(self, phase: Phase) -> None:
        """The time since the last mark was spent in this phase."""
        self._marks.append(phase)
        self._record(len(self._marks))

    def phases(self) -> Phases:
        """The phases since `begin`, in seconds; to be asked after the device is done."""
        seconds = [0.0] * len(Phase)
        for number, phase in enumerate(self._marks):
            elapsed_ms = self._pool[number].elapsed_time(self._pool[number + 1])
            seconds[phase] += elapsed_ms / 1000
        return _phases(seconds)

    def _record(self, number: int) -> None:
        if number == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        self._pool[number].record(torch.cuda.current_stream(self._device))


def phase_clock(device: torch.device) -> PhaseClock:
    """The clock for a device."""
    return CudaPhaseClock(device) if device.type == "cuda" else HostPhaseClock()


def _phases(seconds: list[float]) -> Phases:
    return Phases(
        data_s=seconds[Phase.DATA],
        h2d_s=seconds[Phase.H2D],
        forward_s=seconds[Phase.FORWARD],
        backward_s=seconds[Phase.BACKWARD],
        optimizer_s=seconds[Phase.OPTIMIZER],
    )
