"""The other work of a host: its load before a run, and waits for its CPUs during it."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuscale.measure.nvml import DriverAbsentError, open_nvml
from gpuscale.measure.telemetry.device import foreign_processes
from gpuscale.records import HostLoad

_STEAL = 8
"""Of the numbers behind `cpu` in /proc/stat: time that a hypervisor gave to others."""
_WITHOUT_GUESTS = 8
"""Guests' time, which follows, is in the first two already."""


class HostLoadMeter:
    """Looks at the host before a run, and once more after it."""

    def __init__(self, gpu_uuids: Sequence[str]) -> None:
        """Looks at the host now, and at the GPUs that the run will have."""
        self._load_average = os.getloadavg()[0]
        # The load is that of the host, also where this process may use a part of it.
        self._cores = os.cpu_count() or 1
        self._gpu_processes: int | None = None
        if gpu_uuids:
            with suppress(DriverAbsentError), open_nvml():
                self._gpu_processes = foreign_processes(gpu_uuids)
        self._waited_s = _waited_s()
        self._ticks = _ticks()
        self._began_s = time.monotonic()

    def read(self) -> HostLoad:
        """The load since then; what the system does not tell is None."""
        lasted_s = time.monotonic() - self._began_s
        waited_s, ticks = _waited_s(), _ticks()
        pressure = steal = None
        if waited_s is not None and self._waited_s is not None and lasted_s > 0:
            pressure = min(1.0, max(0.0, (waited_s - self._waited_s) / lasted_s))
        if ticks is not None and self._ticks is not None and ticks[0] > self._ticks[0]:
            steal = max(0.0, (ticks[1] - self._ticks[1]) / (ticks[0] - self._ticks[0]))
        return HostLoad(
            load_average=self._load_average,
            cores=self._cores,
            cpu_pressure=pressure,
            steal=steal,
            gpu_processes=self._gpu_processes,
        )


def _waited_s() -> float | None:
    """Seconds since its start in which some process of the host waited for a CPU."""
    try:
        some = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        # A kernel without pressure stall information, or before 4.20.
        return None


def _ticks() -> tuple[int, int] | None:
    """All ticks of the host's CPUs, and those that were stolen from them."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
        ticks = [int(text) for text in first.split()[1:]]
        return sum(ticks[:_WITHOUT_GUESTS]), ticks[_STEAL - 1]
    except (OSError, ValueError, IndexError):
        return None
