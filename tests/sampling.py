"""The process that samples GPUs beside the ranks, in an interpreter of its own."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuscale.measure.telemetry.sampler import SamplingOrder

SERVE = (
    "import socket, sys; from gpuscale.measure.telemetry import sampler\n"
    "sampler.HANG_S = int(sys.argv[2])\n"
    "sampler.serve(socket.socket(fileno=int(sys.argv[1])))"
)


class Sampler:
    """A process that samples devices until `stop` is called."""

    def __init__(
        self,
        addresses: Mapping[str, str | None],
        output: Path,
        interval_s: float = 0.1,
        *,
        hang_s: int = 30,
    ) -> None:
        self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-c", SERVE, str(number), str(hang_s)]
            self.process = subprocess.Popen(command, pass_fds=[number])
        order = SamplingOrder(addresses={**addresses}, output=str(output), interval_s=interval_s)
        self.pipe.send(msgspec.json.encode(order))

    def stop(self) -> int:
        """End the sampling and the process; return its exit code."""
        with self.pipe:
            self.pipe.send(b"stop")
            while self.pipe.recv(100) not in (b"done", b""):
                pass
        return self.process.wait()
