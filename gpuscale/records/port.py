"""A network port of a node: its state, its place in the node, and the growth of its counters."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.base.port_counters import MOST_GROWTH, PortKind
from gpuscale.records.record import Line, Name, Number, PositiveCount, Record

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
    """Lower rate of those before and after the run."""
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
