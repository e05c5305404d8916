"""How NCCL or RCCL connects the ranks of a run, as the library's own log says."""

from collections.abc import Mapping
from typing import Literal

from gpuscale.records.record import Count, Line, PositiveCount, Record


class Communicator(Record, frozen=True, kw_only=True):
    """The connections of one node's ranks; a field is None or empty if the log does not say it.

    If the ranks have several communicators, the numbers are those of the largest.
    """

    version: Line | None = None
    """Name and version of the library; often only rank 0 logs it."""
    plugin: Line | None = None
    """Network plugin."""
    adapters: tuple[Line, ...] = ()
    """Network adapters, such as `mlx5_0:1/IB`, or libfabric's provider."""
    transports: tuple[Line, ...] = ()
    """Ways to peers, such as `P2P/CUMEM`, `SHM` and `NET/IB`."""
    gpu_direct: Literal["on", "partly", "off"] | None = None
    """Use of GPUDirect RDMA by all, some or none of the network connections."""
    ranks: PositiveCount | None = None
    channels: Count | None = None
    """Channels of collective operations."""
    nvls_channels: Count | None = None
    """Channels that reduce in the NVLink switch; 0 if NVLS is off."""
    rings: Line | None = None
    """Number of paths, rates inside and between nodes, and kinds of links."""
    trees: Line | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """What is known and can be compared, by its words; libraries compare the version."""
        nvls = None if self.nvls_channels is None else "on" if self.nvls_channels else "off"
        values = {
            "NVLS": nvls,
            "GDRDMA": self.gpu_direct,
            "transport between nodes": self._transports("NET", "COLLNET"),
            "transport inside nodes": self._transports("P2P", "SHM"),
            "channels": self.channels,
            "NVLS channels": self.nvls_channels,
            "rings": self.rings,
            "trees": self.trees,
            "adapters": ", ".join(self.adapters),
            "network plugin": self.plugin,
        }
        return {name: str(value) for name, value in values.items() if value}

    def _transports(self, *kinds: str) -> str:
        return ", ".join(each for each in self.transports if each.startswith(kinds))
