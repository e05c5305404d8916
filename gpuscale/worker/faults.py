"""Faults that are made on purpose (`--inject`), to see whether they show where they belong."""

import os
import signal
import time
from collections.abc import Sequence

import torch

from gpuscale.injections import Injection

_CALIBRATION_CYCLES = 50_000_000


class Faults:
    """The faults of one rank; without any, every method returns at once."""

    def __init__(self, injections: Sequence[Injection], *, rank: int, device: torch.device) -> None:
        mine = [injection for injection in injections if injection.rank in (None, rank)]
        self._data_s = sum(i.seconds or 0.0 for i in mine if i.kind == "data")
        self._slower_by = sum(i.factor - 1 for i in mine if i.factor is not None)
        self._hang_at = {i.step for i in mine if i.kind == "hang"}
        self._crash_at = {i.step for i in mine if i.kind == "crash"}
        self._device = device
        self._delay_s = 0.0
        self._cycles_per_s = 0.0
        self._steps = 0

    def know_pace(self, pace_s: float) -> None:
        """Take the rank's own seconds per step, of which slowness is a part."""
        if self._device.type == "cuda":
            self._cycles_per_s = _cycles_per_second(self._device)
        self._delay_s = self._slower_by * pace_s

    def at_step(self) -> None:
        """Hang or crash, if this is the step for it."""
        self._steps += 1
        if self._steps in self._hang_at:
            # For ever: signals that are handled would end a single pause.
            while True:
                signal.pause()
        if self._steps in self._crash_at:
            os.kill(os.getpid(), signal.SIGSEGV)

    def in_data(self) -> None:
        """Be late with the batch."""
        if self._data_s:
            time.sleep(self._data_s)

    def in_forward(self) -> None:
        """Take longer over the computation."""
        if not self._delay_s:
            return
        if self._device.type == "cuda":
            # torch's own tests keep a stream busy in this way; there is no public one.
            torch.cuda._sleep(int(self._delay_s * self._cycles_per_s))
        else:
            time.sleep(self._delay_s)


def _cycles_per_second(device: torch.device) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    begin.record(stream)
    torch.cuda._sleep(_CALIBRATION_CYCLES)
    end.record(stream)
    torch.cuda.synchronize(device)
    elapsed_ms: float = begin.elapsed_time(end)
    return _CALIBRATION_CYCLES / (elapsed_ms / 1000)
