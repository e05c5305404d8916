"""Inject faults (`--inject`) into the steps of a rank."""

import os
import signal
import statistics
import time
from collections.abc import Sequence

import torch

from gpuscale.workload.injections import Injection

_CALIBRATION_CYCLES = 50_000_000


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
        self._delay_cycles, self._delay_s = 0, 0.0
        self._forward_began_s = 0.0
        self._forward_times_s: list[float] = []
        """Duration of the forward pass in each step, in seconds."""
        self._steps_per_forward: float | None = None
        self._steps = 0

    def know_pace(self, pace_s: float) -> None:
        """Set the rank's own seconds per step, to which the injected slowdown is proportional."""
        if not self._slower_by:
            return
        # Late data are another fault, which slowness must not enlarge.
        pace_s -= self._data_s
        if self._device.type == "cuda":
            self._delay_s = self._slower_by * pace_s
            self._delay_cycles = int(self._delay_s * _cycles_per_second(self._device))
        else:
            self._steps_per_forward = pace_s / statistics.median(self._forward_times_s)

    def at_step(self) -> None:
        """Hang or crash if an injection is due at this step."""
        self._steps += 1
        if self._slower_by and self._steps_per_forward is None:
            self._forward_times_s.append(0.0)
        if self._steps in self._hang_at:
            # In a loop, since a handled signal ends a pause.
            while True:
                signal.pause()
        if self._steps in self._crash_at:
            os.kill(os.getpid(), signal.SIGSEGV)

    def in_data(self) -> None:
        """Delay the loading of a batch by the injected seconds."""
        if self._data_s:
            self._data_pause.lengthen(self._data_s)

    def begin_forward(self, share: float = 1.0) -> None:
        """On a GPU, inject `share` of a step's delay; on a CPU, start to time the forward pass."""
        if self._delay_cycles:
            # torch's own tests keep a stream busy in this way; there is no public function.
            torch.cuda._sleep(int(self._delay_cycles * share))
            # The host as well: a GPU that waits for its host would hide this kernel.
            self._forward_pause.lengthen(self._delay_s * share)
        elif self._slower_by:
            self._forward_began_s = time.perf_counter()

    def end_forward(self) -> None:
        """On a CPU, inject a delay proportional to the duration of the forward pass."""
        # In proportion to this forward pass: other load on the machine changes the length of steps,
        # and the rank must be slower by its factor all the same.
        if not self._slower_by or self._device.type == "cuda":
            return
        forward_s = time.perf_counter() - self._forward_began_s
        if self._steps_per_forward is None:
            self._forward_times_s[-1] += forward_s
        else:
            self._forward_pause.lengthen(self._slower_by * self._steps_per_forward * forward_s)


class Pause:
    """A series of sleeps with the right total length, even if single sleeps take too long."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def lengthen(self, seconds: float) -> None:
        """Sleep for the given seconds, minus the time by which earlier sleeps were too long."""
        self._owed_s += seconds
        if self._owed_s > 0:
            began = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began


def _cycles_per_second(device: torch.device) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    # The first launch loads the kernel, which takes longer than what is timed.
    torch.cuda._sleep(1)
    torch.cuda.synchronize(device)
    begin.record(stream)
    torch.cuda._sleep(_CALIBRATION_CYCLES)
    end.record(stream)
    torch.cuda.synchronize(device)
    elapsed_ms: float = begin.elapsed_time(end)
    return _CALIBRATION_CYCLES / (elapsed_ms / 1000)
