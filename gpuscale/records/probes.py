"""Probes (short measurements that can confirm the cause of a slowdown) and network ports."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from gpuscale.base.grouping import by_key
from gpuscale.records.gpu_and_port_counters import MOST_GROWTH, PortKind
from gpuscale.records.record import Bytes, Line, Name, Number, PositiveCount, Record

_PortRate = Annotated[float, Meta(ge=0, le=1e6)]
Rate = Annotated[float, Meta(ge=1e-9, le=1e21)]
_COMPUTING = ("computing", "clocks_without_phases", "stragglers", "device_fault")
_COPIES = ("late_copies", "device_fault")
_COMMUNICATION = ("communication", "time_in_no_part")
MATRIX, SEND = "matrix multiplication", "send"
INSIDE, PAIR = "all-reduce in a node", "all-reduce of two nodes"


class ProbeKind(NamedTuple):
    """Properties of a probe: the unit of its rates, and the causes that a drop in rate confirms."""

    unit: str
    confirms: str
    """Wording for the confirmed causes, such as `slower computing`."""
    causes: tuple[str, ...]


PROBES: Mapping[str, ProbeKind] = {
    "core": ProbeKind("loops/s", "slower computing", (*_COMPUTING, "late_batches")),
    MATRIX: ProbeKind("FLOP/s", "slower computing", _COMPUTING),
    "memory": ProbeKind("B/s", "slower computing", _COMPUTING),
    "host to device": ProbeKind("B/s", "slower copies", _COPIES),
    "device to host": ProbeKind("B/s", "slower copies", _COPIES),
    "storage": ProbeKind("B/s", "later batches", ("late_batches",)),
    **dict.fromkeys((INSIDE, SEND, PAIR), ProbeKind("B/s", "slower communication", _COMMUNICATION)),
}
"""All probes by name, in the order in which they run (`measure/worker/probes.py`)."""


def probes_for(code: str) -> tuple[str, ...]:
    """Return the names of the probes that can confirm a cause with this code."""
    return tuple(name for name, kind in PROBES.items() if code in kind.causes)


class Probe(Record, frozen=True, kw_only=True):
    """Repeated measurements of a device, a node's storage or a link, executed by one rank."""

    name: Name
    """Name of the probe, such as `matrix multiplication`."""
    host: Name
    device: Line | None = None
    """Device, such as `GPU 3` or `CPU rank 0`; None for a probe of the whole node."""
    uuid: Line | None = None
    peer: Name | None = None
    """Node that receives the messages; None if nothing is sent."""
    message_bytes: Bytes | None = None
    precision: Name | None = None
    rates: Annotated[tuple[Rate, ...], Meta(min_length=1)]
    """Rate of each repetition, in the unit of the probe."""

    @property
    def comparison_key(self) -> tuple[str | int | None, ...]:
        """Name, message size and precision: probes that agree in these are comparable."""
        return self.name, self.message_bytes, self.precision

    @property
    def identity(self) -> tuple[str | int | None, ...]:
        """Key of the probe and its device or link; probes with equal keys are repetitions."""
        return (*self.comparison_key, self.host, self.uuid or self.device, self.peer)


class Port(Record, frozen=True, kw_only=True):
    """State and counters of a network port or TCP stack over a run; a field is None if unknown."""

    name: Name
    """Name such as `mlx5_1 port 1`, `cxi0`, `eth0` or `TCP`."""
    kind: PortKind
    model: Line | None = None
    """PCI vendor and device, such as `15b3:1021`."""
    pci_address: Line | None = None
    numa_node: Number | None = None
    state: Line | None = None
    """State at the end of the run, such as `active`, `up`, `down` or `vanished`."""
    rate_gbit_s: _PortRate | None = None
    """Data rate; the lower of the rates before and after the run."""
    width: PositiveCount | None = None
    """Number of lanes in use on InfiniBand."""
    pcie_gt_s: _PortRate | None = None
    """Transfer rate of each PCIe lane, in gigatransfers per second."""
    pcie_width: PositiveCount | None = None
    growth: Mapping[Name, Annotated[int, Meta(ge=0, le=MOST_GROWTH)]] = {}
    """Growth of each counter that grew during the run (see `PORT_COUNTERS`)."""
    at_least: tuple[Name, ...] = ()
    """Counters that were reset or reached their maximum, so their growth is a lower bound."""
    absent: Mapping[Line, tuple[Name, ...]] = {}
    """Counters whose growth is unknown, by reason."""

    @property
    def is_usable(self) -> bool:
        """True if the port's state permits traffic or is unknown."""
        return self.state in (None, "active", "active_defer", "up", "unknown")

    def growth_of(self, counter: str) -> int | None:
        """Return the growth of a counter over the run; None if unknown."""
        unknown = any(counter in names for names in self.absent.values())
        return None if unknown else self.growth.get(counter, 0)


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Probes of a node's devices and links, and the node's network ports."""

    host: str
    probes: tuple[Probe, ...] = ()
    ports: tuple[Port, ...] = ()
    gpu_numa_nodes: tuple[int | None, ...] = ()
    """NUMA node of each GPU, in the order of the GPUs; None if unknown."""
    cpu_numa_nodes: tuple[int, ...] = ()
    """NUMA nodes of the CPUs on which the probing rank may run; empty if unknown."""


def merged_probes(parts: Sequence[NodeProbe]) -> NodeProbe:
    """Combine the probes of all parts, which belong to one node; keep the first part's ports."""
    repeats = by_key((probe.identity, probe) for part in parts for probe in part.probes)
    probes = (
        msgspec.structs.replace(same[-1], rates=tuple(r for probe in same for r in probe.rates))
        for same in repeats.values()
    )
    return msgspec.structs.replace(parts[0], probes=tuple(probes))


Pairs = tuple[tuple[int, int], ...]
"""Pairs of nodes that exchange messages at the same time; no node occurs twice."""


class NodeProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to probe a job's nodes, with one rank for each GPU."""

    device: str
    names: tuple[str, ...]
    ranks_per_node: int
    seconds: float
    """Time limit for the matrix multiplications, which end early once their rate is steady. Every
    other probe of a device gets a quarter of this time."""
    message_bytes: tuple[int, ...]
    rounds: tuple[Pairs, ...] = ()
    precision: str | None = None
    data_root: str | None = None
    timeout_s: float = 300.0
