"""Take the evidence of a node, beside the ranks of a run."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpuscale.measure.evidence.gpus import count_foreign_processes
from gpuscale.measure.evidence.host_load import HostLoadMeter
from gpuscale.measure.evidence.nccl_log import log_variables, read_logs
from gpuscale.measure.evidence.network import NetworkMeter
from gpuscale.measure.evidence.settings import read_settings
from gpuscale.records import NodeEvidence


class NodeMeter:
    """Takes the evidence of this node from the creation of the meter until the call of `read`."""

    def __init__(
        self, addresses: Mapping[str, str | None], *, logs: Path, root: Path = Path("/")
    ) -> None:
        """Start to measure; NCCL leaves logs about the run's GPUs in a folder on this node."""
        # Before the ranks start, so that all processes on the GPUs are others'.
        self._load = HostLoadMeter(count_foreign_processes(addresses), root=root)
        self._network = NetworkMeter(root=root)
        self._logs, self._root = logs, root
        with suppress(OSError):
            logs.mkdir(mode=0o700, exist_ok=True)
        self.variables = log_variables(logs, os.environ)
        """Environment variables that the ranks need for the evidence."""

    def read(self) -> NodeEvidence:
        """Return the evidence since the meter was created."""
        settings, absent = read_settings(self._root)
        host = socket.gethostname()
        connections, problem = read_logs(self._logs, host)
        with suppress(OSError):
            self._logs.rmdir()
        return NodeEvidence(
            host=host,
            load=self._load.read(),
            settings=settings,
            ports=self._network.read(),
            connections=connections,
            absent=absent if problem is None else {**absent, "nccl": problem},
        )
