"""Evidence on a node and its network ports, collected while the ranks of a run train."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.base.port_counters import MOST_GROWTH, PortKind
from gpuscale.records.record import Count, Line, Name, Number, PositiveCount, Record, Seconds, Share
from gpuscale.records.software import Library

Rate = Annotated[float, Meta(ge=0, le=1e6)]
Growth = Annotated[int, Meta(ge=0, le=MOST_GROWTH)]
_USABLE = (None, "active", "active_defer", "up", "unknown")


class Port(Record, frozen=True, kw_only=True):
    """A network port, or TCP as a whole, during a run; a field is None if unknown."""

    name: Name
    """Name such as `mlx5_1 port 1`, `cxi0`, `eth0` or `TCP`."""
    kind: PortKind
    model: Line | None = None
    """PCI vendor and device, such as `15b3:1021`."""
    pci_address: Line | None = None
    numa_node: Number | None = None
    state: Line | None = None
    """State at the end of the run, such as `active`, `up`, `down` or `vanished`."""
    rate_gbit_s: Rate | None = None
    """Data rate; the lower of those before and after the run."""
    duplex: Line | None = None
    """`full` or `half`, on Ethernet."""
    width: PositiveCount | None = None
    """Lanes in use, on InfiniBand."""
    pcie_gt_s: Rate | None = None
    """Transfers of each PCIe lane, in 10⁹ a second."""
    pcie_width: PositiveCount | None = None
    growth: Mapping[Name, Growth] = msgspec.field(default_factory=dict)
    """Growth of each counter that grew during the run (see `gpuscale.base.port_counters`)."""
    at_least: tuple[Name, ...] = ()
    """Counters that were reset or reached their maximum, so may have grown by more."""
    absent: Mapping[Line, tuple[Name, ...]] = msgspec.field(default_factory=dict)
    """Counters whose growth is unknown, by reason."""

    @property
    def is_usable(self) -> bool:
        """True unless the port's state shows that it carries no traffic."""
        return self.state in _USABLE

    def growth_of(self, counter: str) -> int | None:
        """Return the growth of a counter over the run; None if unknown."""
        unknown = any(counter in names for names in self.absent.values())
        return None if unknown else self.growth.get(counter, 0)


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
        """Sort key that increases with the load from other processes."""
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
    cpus: tuple[Line, ...] = ()
    """CPUs of each rank, such as `0-7,64-71`, each list once."""
    absent: Mapping[Name, Line] = msgspec.field(default_factory=dict)
    """Reasons why evidence could not be read."""
    cost_s: Seconds | None = None
    """Time taken to collect the evidence."""
