"""Collect the evidence of a node: load from other processes, settings and network."""

import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select

from msgspec import json

from gpuscale.base.host import die_with_parent, text_of
from gpuscale.measure.evidence.nccl_log import log_variables, read_logs
from gpuscale.measure.evidence.network import NetworkMeter
from gpuscale.measure.evidence.settings import read_settings
from gpuscale.records import HostLoad, NodeEvidence

_LONGEST_QUESTION_BYTES = 65536
_PATIENCE_S = 10.0
"""Time limit for an answer: without persistence mode, a driver takes seconds to wake the GPUs."""


class DriverProcess:
    """A process that asks the driver about GPUs, since ranks must not inherit an open driver.

    It is forked before this process imports torch, and stays: a later fork, with all that torch has
    mapped, would take tens of milliseconds before each run.
    """

    def __init__(self) -> None:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The child must not write signals into the pipe that wakes the keeper.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.number = os.fork()
        if not self.number:
            with suppress(BaseException):
                die_with_parent()
                self._pipe.close()
                _answer_about_gpus(theirs)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def count_foreign_processes(self, addresses: Mapping[str, str | None]) -> int | None:
        """Count the processes that compute on these GPUs before a run; None if unknown.

        `addresses` has the PCI address of each GPU by UUID.
        """
        answer = b""
        with suppress(OSError):
            self._pipe.send(json.encode(addresses))
            if select([self._pipe], [], [], _PATIENCE_S)[0]:
                answer = self._pipe.recv(100)
            else:
                # The driver hangs; a later answer would be taken for that of another run.
                self._pipe.close()
                os.kill(self.number, signal.SIGKILL)
        return int(answer) if answer.isdigit() else None


def _answer_about_gpus(pipe: socket.socket) -> None:
    from gpuscale.measure.smi import open_smi
    from gpuscale.measure.telemetry.devices import foreign_processes

    while question := pipe.recv(_LONGEST_QUESTION_BYTES):
        count = None
        with suppress(Exception), open_smi() as smi:
            count = foreign_processes(smi, json.decode(question))
        pipe.send(str(count).encode())


_STEAL = 8
"""Index of the column in /proc/stat with the time that the hypervisor gave to other guests."""
_WITHOUT_GUESTS = 8
"""Number of columns of /proc/stat to add up; the first two include the guest columns at the end."""


class HostLoadMeter:
    """Measures the load of the host from the creation of the meter until the call of `read`."""

    def __init__(self, gpu_processes: int | None = None, *, root: Path = Path("/")) -> None:
        self._root, self._gpu_processes = root, gpu_processes
        self._load_average = os.getloadavg()[0]
        # All cores of the host, like its load, even if this process may use only some.
        self._cores = os.cpu_count() or 1
        self._waited_s = _waited_s(root)
        self._ticks = _ticks(root)
        self._began_s = time.monotonic()

    def read(self) -> HostLoad:
        """Return the load since the meter was created; values that are not reported are None."""
        lasted_s = time.monotonic() - self._began_s
        waited_s, ticks = _waited_s(self._root), _ticks(self._root)
        pressure = steal = None
        if waited_s is not None and self._waited_s is not None and lasted_s > 0:
            pressure = min(1.0, max(0.0, (waited_s - self._waited_s) / lasted_s))
        if ticks is not None and self._ticks is not None and ticks[0] > self._ticks[0]:
            steal = max(0.0, (ticks[1] - self._ticks[1]) / (ticks[0] - self._ticks[0]))
        return HostLoad(
            load_average=self._load_average,
            cores=self._cores,
            cpu_pressure=pressure,
            steal=steal,
            gpu_processes=self._gpu_processes,
        )


def _waited_s(root: Path) -> float | None:
    """Seconds since boot during which at least one process of the host waited for a CPU."""
    # Absent without pressure stall information, or before Linux 4.20.
    some = re.match(r"some .*total=(\d+)", text_of(root / "proc/pressure/cpu"))
    return int(some[1]) / 1e6 if some else None


def _ticks(root: Path) -> tuple[int, int] | None:
    """Return the total ticks of the host's CPUs, and how many ticks went to other guests."""
    first = text_of(root / "proc/stat").partition("\n")[0]
    ticks = [int(text) for text in first.split()[1:] if text.isdecimal()]
    return (sum(ticks[:_WITHOUT_GUESTS]), ticks[_STEAL - 1]) if len(ticks) >= _STEAL else None


class NodeMeter:
    """Collects the evidence of this node from the creation of the meter until `read` is called."""

    def __init__(self, gpu_processes: int | None, *, began_s: float, logs: Path) -> None:
        """Start to measure; NCCL leaves logs about the run's GPUs in a folder on this node.

        `began_s` is when the keeper began to take evidence, by the monotonic clock.
        """
        self._load = HostLoadMeter(gpu_processes)
        self._network, self._logs = NetworkMeter(), logs
        with suppress(OSError):
            logs.mkdir(mode=0o700, exist_ok=True)
        self.variables = log_variables(logs, os.environ)
        """Environment variables that the ranks need for the evidence."""
        self._cost_s = time.monotonic() - began_s

    def read(self) -> NodeEvidence:
        """Return the evidence since the meter was created."""
        self._cost_s -= time.monotonic()
        settings, absent = read_settings()
        host = socket.gethostname()
        connections, problem = read_logs(self._logs, host)
        with suppress(OSError):
            self._logs.rmdir()
        load, ports = self._load.read(), self._network.read()
        return NodeEvidence(
            host=host,
            load=load,
            settings=settings,
            ports=ports,
            connections=connections,
            absent=absent if problem is None else {**absent, "nccl": problem},
            cost_s=round(self._cost_s + time.monotonic(), 6),
        )
