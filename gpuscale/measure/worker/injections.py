"""Inject faults (`--inject`) into the steps of a rank."""

import os
import signal
import statistics
import time
from collections.abc import Sequence

import torch

from gpuscale.workload.injections import Injection


class Faults:
    """The faults to inject into one rank; if there are none, every method does nothing."""

    def __init__(self, injections: Sequence[Injection], *, rank: int, device: torch.device) -> None:
        mine = [injection for injection in injections if injection.rank in (None, rank)]
        self.any_is_slow = any(injection.factor is not None for injection in injections)
        """True if the injections slow down any rank."""
        self._data_s = sum(i.seconds or 0.0 for i in mine if i.kind == "data")
        self._slower_by = sum(i.factor - 1 for i in mine if i.factor is not None)
        self._hang_at = {i.step for i in mine if i.kind == "hang"}
        self._crash_at = {i.step for i in mine if i.kind == "crash"}
        self._device = device
        self._data_pause, self._forward_pause = Pause(), Pause()
        self._forward_began_s = 0.0
        self._forward_times_s: list[float] = []
        """Duration of the forward pass in each step, in seconds."""
        self._steps_per_forward: float | None = None
        self._steps = 0

    def set_pace(self, pace_s: float) -> None:
        """Set the rank's own seconds per step, to which the injected slowdown is proportional."""
        if self._slower_by:
            # Delayed data are a separate fault, which the slowdown must not multiply.
            own_s = pace_s - self._data_s
            self._steps_per_forward = own_s / statistics.median(self._forward_times_s)

    def at_step(self) -> None:
        """Hang or crash if an injection is due at this step."""
        self._steps += 1
        if self._slower_by and self._steps_per_forward is None:
            self._forward_times_s.append(0.0)
        if self._steps in self._hang_at:
            # In a loop, since signal.pause returns after a handled signal.
            while True:
                signal.pause()
        if self._steps in self._crash_at:
            os.kill(os.getpid(), signal.SIGSEGV)

    def in_data(self) -> None:
        """Delay the loading of a batch by the injected seconds."""
        if self._data_s:
            self._data_pause.lengthen(self._data_s)

    def begin_forward(self) -> None:
        """Start timing a forward pass, if this rank is to be slowed down."""
        if self._slower_by:
            self._forward_began_s = self._now_s()

    def end_forward(self) -> None:
        """Inject a delay proportional to the duration of the forward pass."""
        # So the rank is slower by its factor even if other load changes the duration of steps.
        if not self._slower_by:
            return
        forward_s = self._now_s() - self._forward_began_s
        if self._steps_per_forward is None:
            self._forward_times_s[-1] += forward_s
        else:
            self._forward_pause.lengthen(self._slower_by * self._steps_per_forward * forward_s)

    def _now_s(self) -> float:
        """Return the time once the device is idle, so that queued work never hides a delay."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Pause:
    """A series of sleeps whose total length is correct, even if individual sleeps overrun."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def lengthen(self, seconds: float) -> None:
        """Sleep for the given seconds, minus the time by which earlier sleeps overran."""
        self._owed_s += seconds
        if self._owed_s > 0:
            began = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began
