"""The folder through which the launcher and the ranks of one run exchange files."""

import contextlib
import fcntl
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Generic, TypeVar

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.host import python_environment
from gpuscale.measure.waits import SAMPLER_S
from gpuscale.records import Environment, NodeEvidence, RunGpus, RunRequest
from gpuscale.records.json_text import from_json, to_json
from gpuscale.records.probe import NodeProbe, NodeProbeRequest
from gpuscale.records.request import (
    CommandOutcome,
    FigureOutcome,
    RankFailure,
    RankOutcome,
)
from gpuscale.records.run_evidence import RankReport
from gpuscale.records.software import ProcessSoftware
from gpuscale.records.trial_report import OverheadOutcome, OverheadPlan

R = TypeVar("R", bound=msgspec.Struct)

LAUNCHER_LOG = "launcher.log"
_OWNER = "owner"


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[R]):
    """A file with one record, exchanged between processes of the same version of gpuscale."""

    path: Path
    kind: type[R]

    def write(self, record: R) -> None:
        """Write the record atomically, so that no reader sees an incomplete file."""
        write_atomically(self.path, to_json(record))

    def read(self) -> R:
        """Return the record; OSError if the file is missing, DecodeError if it is invalid."""
        return from_json(self.kind, self.path.read_text(encoding="utf-8"))

    def read_if_left(self) -> R | None:
        """Return the record; None if the file is missing or invalid."""
        try:
            return self.read()
        except (OSError, DecodeError):
            return None


@dataclass(frozen=True, slots=True)
class RecordLines(Generic[R]):
    """A file with one record of each rank, in order of rank, one per line."""

    path: Path
    kind: type[R]

    def write(self, records: Sequence[R]) -> None:
        """Write the records atomically, so that no reader sees an incomplete file."""
        write_atomically(self.path, "\n".join(map(to_json, records)))

    def read(self) -> list[R]:
        """Return the records; OSError if the file is missing, DecodeError if one is invalid."""
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [from_json(self.kind, line) for line in lines if line]


def _path(name: str) -> Callable[["RunDirectory", int | str], Path]:
    """Make a method that takes a rank or host, puts it in place of `{}`, and returns the path."""
    return lambda directory, of: directory.path / name.format(of)


def _record(name: str, kind: type[R]) -> Callable[["RunDirectory", int | str], RecordFile[R]]:
    return lambda directory, of: RecordFile(directory.path / name.format(of), kind)


class RunDirectory:
    """The files of a run; each has one writer and is complete as soon as it exists."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        self.request = RecordFile(path / "request.json", RunRequest)
        self.overhead_plan = RecordFile(path / "overhead-plan.json", OverheadPlan)
        """Present in addition to the request if the overhead of measuring is measured."""
        self.probe_request = RecordFile(path / "probe-request.json", NodeProbeRequest)
        self.gpus = RecordFile(path / "gpus.json", RunGpus)
        """The GPUs of the run on each node; absent if there are none."""
        self.progress = path / "progress"
        """Progress of rank 0: stage, done and total, separated by tabs and padded with blanks."""
        self.hosts = path / "hosts"
        """Hosts of the run as named by the launcher, one per line; absent if ranks are local."""
        self.enough = path / "enough"
        """Present once a command has reported enough steps and can be ended on all nodes."""
        self.launched = RecordLines(path / "launched.jsonl", RankReport)
        """The ranks that the launcher has started, with their hosts; absent if ranks are local."""
        self.outcomes = RecordLines(path / "outcomes.jsonl", RankOutcome)
        """Written by rank 0 once all ranks have ended their windows and passed their checks."""
        self.overheads = RecordLines(path / "overheads.jsonl", OverheadOutcome)
        self.launcher_log = path / LAUNCHER_LOG
        """The output of the command that starts the ranks on several nodes."""

    node_evidence = _record("node-{}.json", NodeEvidence)
    """Evidence of a host, which its keeper leaves after the host's last rank has ended."""
    samples = _path("samples-{}.jsonl")
    """Readings of the GPU sampler on a host."""
    environment = _record("environment-{}.json", Environment)
    """A node's description of itself; the file name contains the launcher's name for the node."""
    refusal = _path("environment-{}.refusal")
    """Present instead of the environment if the node is unusable: the reason, in one line."""
    output = _path("rank-{}.log")
    """Standard output and standard error of a rank; absent if the rank ended well."""
    stacks = _path("rank-{}.stacks")
    """Stack traces of the rank's threads at the timeout; absent without a timeout."""
    command_outcome = _record("rank-{}.command.json", CommandOutcome)
    """Present instead of `outcomes` if the rank ran a command."""
    figures = _record("rank-{}.figures.json", FigureOutcome)
    """Present instead of `command_outcome` if the command prints figures."""
    software = _record("rank-{}.software.json", ProcessSoftware)
    """Software of the processes of the rank's command."""
    started = _path("rank-{}.started")
    """Numbers of the ranks on this node that a command has started."""
    probe = _record("rank-{}.probe.json", NodeProbe)
    """The rank's measurements of its node and of the links to other nodes."""
    failure = _record("rank-{}.failure.json", RankFailure)
    """The rank's own report of the error that ended it."""

    def host_names(self) -> list[str]:
        """Return the hosts of the run, as named by the launcher."""
        return self.hosts.read_text(encoding="utf-8").split()

    def host_of_ranks(self) -> dict[int, str]:
        """Return the host of each rank that the launcher has started; empty if ranks are local."""
        try:
            return {report.rank: report.host for report in self.launched.read()}
        except FileNotFoundError:
            return {}

    def ranks_per_host(self, ranks: int) -> int:
        """Return the largest number of ranks on any host; each host has consecutive ranks."""
        return math.ceil(ranks / len(self.host_names())) if self.hosts.exists() else ranks

    @property
    def variable(self) -> str:
        """`NAME=value` that marks all processes of the run's command in their environment."""
        return f"GPUSCALE_RUN={self.path.absolute()}"

    def read_progress(self) -> tuple[str, int, int] | None:
        """Return rank 0's progress as (stage, done, total); None before its first report."""
        try:
            stage, done, total = self.progress.read_text(encoding="utf-8").split("\t")
        except (OSError, ValueError):
            return None
        return stage, int(done), int(total)

    def nodes(self) -> tuple[NodeEvidence, ...]:
        """Return the evidence that the nodes have left, in the order of their names."""
        paths = sorted(self.path.glob("node-*.json"))
        left = [RecordFile(path, NodeEvidence).read_if_left() for path in paths]
        return tuple(filter(None, left))

    def failures(self) -> list[RankFailure]:
        """Return the failure records left by all ranks, earliest first."""
        paths = self.path.glob("rank-*.failure.json")
        in_order = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
        return [RecordFile(path, RankFailure).read() for path in in_order]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """The file with the GPU samples taken on one node during a run."""

    host: str
    path: Path
    addresses: Mapping[str, str | None]
    """PCI addresses of the sampled devices by UUID; None if unknown."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees it incomplete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def stderr_path(samples: Path) -> Path:
    """Return the path for error messages of the sampler that writes the given file."""
    return samples.with_name(f"{samples.name}.stderr")


class Sampler:
    """A child process that samples GPUs into a file until it is stopped or this process ends."""

    def __init__(
        self, *, addresses: Mapping[str, str | None], output: Path, interval_s: float = 0.1
    ) -> None:
        command = [sys.executable, "-P", "-m", "gpuscale.measure.telemetry.sampler"]
        command += ["--output", str(output), "--interval-s", str(interval_s)]
        command += ["--parent-pid", str(os.getpid())]
        for uuid, address in addresses.items():
            command += ["--device", uuid, *([address] if address else [])]
        with stderr_path(output).open("wb") as errors:
            self._process = Popen(
                command, stdin=DEVNULL, stdout=DEVNULL, stderr=errors, env=python_environment()
            )
        self.pid = self._process.pid

    def stop(self) -> None:
        """Ask the sampler to end after a last sample; kill it if it takes too long."""
        for end in (self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(TimeoutExpired):
                self._process.wait(SAMPLER_S)
                return


@contextlib.contextmanager
def scratch_folder(prefix: str, *, within: Path | None = None) -> Iterator[Path]:
    """Provide a temporary folder, after removing folders that killed processes left behind."""
    place = Path(tempfile.gettempdir()) if within is None else within
    # If each host keeps the locks of a shared file system by itself, those of another host look
    # free. No host name has an underscore.
    on_this_host = f"{prefix}{socket.gethostname()}_"
    for folder in place.glob(f"{on_this_host}*"):
        # The system releases the lock when a process ends, however that comes about.
        with contextlib.suppress(OSError), (folder / _OWNER).open("rb+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix=on_this_host, dir=place, ignore_cleanup_errors=True
        ) as name,
        contextlib.ExitStack() as held,
    ):
        # Some network file systems have no locks: there a folder is never taken for left.
        with contextlib.suppress(OSError):
            claim = Path(name) / f"new-{_OWNER}"
            fcntl.flock(held.enter_context(claim.open("wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its name only once it is locked, so that no process finds it free.
            claim.rename(claim.with_name(_OWNER))
        yield Path(name)
