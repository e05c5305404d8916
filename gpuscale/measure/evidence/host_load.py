"""CPU load of the host by other processes, before and during a run."""

import os
import re
import time
from pathlib import Path

from gpuscale.base.host import text_of
from gpuscale.records import HostLoad

_STEAL = 8
"""Index of the column in /proc/stat with the time that the hypervisor gave to other guests."""
_WITHOUT_GUESTS = 8
"""Number of columns of /proc/stat to add up; the first two include the guest columns at the end."""


class HostLoadMeter:
    """Measures the load of the host from the creation of the meter until the call of `read`."""

    def __init__(self, gpu_processes: int | None = None, *, root: Path = Path("/")) -> None:
        self._root, self._gpu_processes = root, gpu_processes
        self._load_average = os.getloadavg()[0]
        # All cores of the host, like its load, even if this process may use only some.
        self._cores = os.cpu_count() or 1
        self._waited_s = _waited_s(root)
        self._ticks = _ticks(root)
        self._began_s = time.monotonic()

    def read(self) -> HostLoad:
        """Return the load since the meter was created; values that are not reported are None."""
        lasted_s = time.monotonic() - self._began_s
        waited_s, ticks = _waited_s(self._root), _ticks(self._root)
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


def _waited_s(root: Path) -> float | None:
    """Seconds since boot during which at least one process of the host waited for a CPU."""
    # Absent without pressure stall information, or before Linux 4.20.
    some = re.match(r"some .*total=(\d+)", text_of(root / "proc/pressure/cpu"))
    return int(some[1]) / 1e6 if some else None


def _ticks(root: Path) -> tuple[int, int] | None:
    """Return the total ticks of the host's CPUs, and how many ticks went to other guests."""
    first = text_of(root / "proc/stat").partition("\n")[0]
    ticks = [int(text) for text in first.split()[1:] if text.isdecimal()]
    return (sum(ticks[:_WITHOUT_GUESTS]), ticks[_STEAL - 1]) if len(ticks) >= _STEAL else None
