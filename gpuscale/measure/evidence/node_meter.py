"""Take the evidence of a node, beside the ranks of a run."""

import socket
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuscale.measure.evidence.gpus import ask_gpus
from gpuscale.measure.evidence.host_load import HostLoadMeter
from gpuscale.measure.evidence.network import NetworkMeter
from gpuscale.records import NodeEvidence


class NodeMeter:
    """Takes the evidence of this node from the creation of the meter until the call of `read`."""

    def __init__(self, gpu_uuids: Sequence[str] = (), *, root: Path = Path("/")) -> None:
        """Start to measure; `gpu_uuids` are the GPUs of this node that the run uses."""
        # Before the ranks start, so that all processes on the GPUs are others'.
        self._gpus = ask_gpus(gpu_uuids)
        self._load = HostLoadMeter(root=root)
        self._network = NetworkMeter(root=root)

    def read(self) -> NodeEvidence:
        """Return the evidence since the meter was created."""
        load = replace(self._load.read(), gpu_processes=self._gpus.processes)
        return NodeEvidence(
            host=socket.gethostname(),
            load=load,
            ports=self._network.read(),
            absent=self._gpus.absent,
        )
