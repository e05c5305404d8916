"""Evidence of a node: what a run's ranks found on it, taken by a process beside them."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.records.port import Port
from gpuscale.records.record import Count, Line, Name, PositiveCount, Record, Share
from gpuscale.records.software import Library

BUSY_LOAD_PER_CORE = 1.5
"""Load average per core above which a host is busy; ranks of a finished run add at most 1."""


class HostLoad(Record, frozen=True, kw_only=True):
    """Load from other processes on a node."""

    load_average: Annotated[float, Meta(ge=0, le=1e6)]
    """Load average over the minute before the run."""
    cores: PositiveCount
    """All cores of the host, including those that this job may not use."""
    cpu_pressure: Share | None = None
    """Share of the run's time in which some process waited for a CPU."""
    steal: Share | None = None
    """Share of CPU time that a hypervisor gave to other virtual machines."""
    gpu_processes: Count | None = None
    """Other processes that computed on the run's GPUs before it began."""

    @property
    def is_busy(self) -> bool:
        """True if load per core exceeds `BUSY_LOAD_PER_CORE`, or other processes use the GPUs."""
        return self.load_average > BUSY_LOAD_PER_CORE * self.cores or bool(self.gpu_processes)

    @property
    def weight(self) -> tuple[bool, float, int]:
        """Sort key: the more other work, the greater."""
        return self.is_busy, self.load_average / self.cores, self.gpu_processes or 0


class NodeEvidence(Record, frozen=True, kw_only=True):
    """Evidence of one node of a run, taken before the first rank began and after the last ended."""

    host: Name
    load: HostLoad | None = None
    settings: Mapping[Name, Line] = msgspec.field(default_factory=dict)
    """Settings that bear on performance, such as `governor`."""
    ports: tuple[Port, ...] = ()
    """Network ports of the host, whose counters include the traffic of other jobs."""
    connections: Mapping[Name, Line] = msgspec.field(default_factory=dict)
    """Facts from NCCL's or RCCL's log on the ranks' connections, such as `channels`."""
    libraries: tuple[Library, ...] = ()
    """Libraries that the run's processes on the node had loaded near the end of the run."""
    absent: Mapping[Name, Line] = msgspec.field(default_factory=dict)
    """Reasons why evidence could not be read."""
