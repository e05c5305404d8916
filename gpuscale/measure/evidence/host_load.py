"""Measure the load of this host from processes other than gpuscale's own.

The load average is not used: it includes the run's own ranks, and work that ended minutes ago.
"""

import os
from collections.abc import Collection
from pathlib import Path

from gpuscale.base.host import allowed_cpus, cpus_in, text_of
from gpuscale.base.process_ends import descendants
from gpuscale.records import HostLoad

# Columns of a CPU in /proc/stat. Interrupts are left out: most serve the run's own traffic.
_BUSY_COLUMNS = (0, 1, 2, 7)
"""Columns of /proc/stat: user, niced and system time, and time stolen by other virtual machines."""
_ALL_COLUMNS = range(8)
_OWN_COLUMNS = slice(11, 15)
"""Columns of /proc/PID/stat after the process name: CPU time of the process and ended children."""
_FEWEST_OWN_CORES = 0.05
_SHORTEST_S = 0.1


class LoadMeter:
    """Measures the CPU time of all processes outside a family, since the meter was created.

    The family is one process (by default this one) and its descendants, including those that have
    ended. CPUs on which the family may not run are ignored.
    """

    def __init__(self, family: int | None = None, root: Path = Path("/")) -> None:
        self._root, self._family = root, family or os.getpid()
        members = self._members()
        # A scheduler's daemon, as the head of a family, may run on CPUs that the job does not have.
        bound = members - {self._family} or members
        self._cpus = set[int]().union(*(cpus_in(allowed_cpus(each, root)) for each in bound))
        self._before = self._ticks(members)

    def load(
        self, gpu_processes: int | None = None, *, may_run_elsewhere: bool = False
    ) -> HostLoad:
        """Return the host's load since the meter was created; `gpu_processes` is only passed on.

        With `may_run_elsewhere`, the load is unknown if this family used almost no CPU time: a
        daemon has probably started the workers, as with `srun` and `docker run`.
        """
        now = self._ticks(self._members())
        elapsed, busy, own = (
            after - before for after, before in zip(now, self._before, strict=True)
        )
        cores, others = len(self._cpus) or os.cpu_count() or 1, None
        ticks_per_core = elapsed / cores
        fewest = _FEWEST_OWN_CORES * ticks_per_core if may_run_elsewhere else 0
        if ticks_per_core >= _SHORTEST_S * os.sysconf("SC_CLK_TCK") and own >= fewest:
            others = round(max(0, busy - own) / ticks_per_core, 3)
        return HostLoad(other_cores=others, cores=cores, gpu_processes=gpu_processes)

    def _members(self) -> set[int]:
        return {self._family, *descendants(self._family, self._root)}

    def _ticks(self, members: Collection[int]) -> tuple[int, int, int]:
        """Return clock ticks of the CPUs: in total, while busy, and those used by `members`."""
        every = busy = own = 0
        for line in text_of(self._root / "proc/stat").splitlines():
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cpus:
                ticks = [int(count) for count in counts]
                every += sum(ticks[column] for column in _ALL_COLUMNS)
                busy += sum(ticks[column] for column in _BUSY_COLUMNS)
        for process in members:
            stat = text_of(self._root / f"proc/{process}/stat")
            own += sum(map(int, stat.rpartition(")")[2].split()[_OWN_COLUMNS]))
        return every, busy, own
