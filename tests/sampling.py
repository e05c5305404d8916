"""The process that samples GPUs beside the ranks, in an interpreter of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from hosts import within_limit

from gpuscale.measure.telemetry.sampler import SamplingOrder, read_samples
from gpuscale.measure.telemetry.summary import TelemetryReport, summarize

Addresses = Mapping[str, str | None]
SERVE = (
    "import socket, sys; from gpuscale.measure.telemetry import sampler\n"
    "sampler.HANG_S = int(sys.argv[2])\n"
    "sampler.serve(socket.socket(fileno=int(sys.argv[1])))"
)


class Sampler:
    """A process that samples devices until `stop` is called."""

    def __init__(
        self, addresses: Addresses, output: Path, interval_s: float = 0.1, *, hang_s: int = 30
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


def sampled(output: Path, addresses: Addresses, ticks: int) -> TelemetryReport:
    began = time.time()
    sampler = Sampler(addresses, output, 0.01)
    try:
        assert within_limit(lambda: lines_of(output) > ticks or _is_absent(output))
    finally:
        assert sampler.stop() == 0
    return summarize(output, [(began, time.time())])


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _is_absent(output: Path) -> bool:
    """True once the header says that no device can be sampled."""
    header, _ = read_samples(output)
    return header is not None and all(device.absent for device in header.values())
