"""The folder through which the launcher and the ranks of one run exchange files."""

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.records import Environment, NodeEvidence, RunRequest
from gpuscale.records.evidence import ProcessSoftware
from gpuscale.records.probes import NodeProbe, NodeProbeRequest
from gpuscale.records.record import from_json, to_json
from gpuscale.records.request import CommandOutcome, FigureOutcome, RankFailure, RankOutcome

R = TypeVar("R")

LAUNCHER_LOG = "launcher.log"
_OWNER = "owner"
_LOOK_S = 0.05
_VISIBLE_S = 30.0


class RecordFile(msgspec.Struct, Generic[R], frozen=True):
    """A file with one record, or with a list of records: one for each rank, in order of rank.

    Only processes of one gpuscale version exchange such files, so they have no format version.
    """

    path: Path
    kind: type[R]

    def write(self, record: R) -> None:
        """Write the record atomically, so that no reader sees an incomplete file."""
        text = ",".join(map(to_json, record if isinstance(record, list) else [record]))
        write_atomically(self.path, f"[{text}]" if isinstance(record, list) else text)

    def read(self) -> R:
        """Return the record; raise OSError if the file is missing, DecodeError if it is invalid."""
        return from_json(self.kind, self.path.read_text(encoding="utf-8"))

    def read_if_left(self) -> R | None:
        """Return the record; None if the file is missing or invalid."""
        with contextlib.suppress(OSError, DecodeError):
            return self.read()
        return None


def _path(name: str) -> Callable[["RunDirectory", int | str], Path]:
    """Return a `RunDirectory` method that inserts a rank or host in `name` and returns the path."""
    return lambda directory, of: directory.path / name.format(of)


def _record(name: str, kind: type[R]) -> Callable[["RunDirectory", int | str], RecordFile[R]]:
    return lambda directory, of: RecordFile(directory.path / name.format(of), kind)


class RunDirectory:
    """The files of a run. Each file has a single writer, and records are written atomically."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        self.request = RecordFile(path / "request.json", RunRequest)
        self.probe_request = RecordFile(path / "probe-request.json", NodeProbeRequest)
        self.gpus = RecordFile(path / "gpus.json", dict[str, dict[str, str | None]])
        """PCI addresses of the run's GPUs by host and UUID; None if unknown."""
        self.progress = path / "progress"
        """Progress of rank 0 or a command: tab-separated stage, done, total; padded with blanks."""
        self.hosts = path / "hosts"
        """Hosts of the run as named by the launcher, one per line; absent if ranks are local."""
        self.enough = path / "enough"
        """Marker file, present once a command has reported enough steps and can be ended."""
        self.launched = RecordFile(path / "launched.json", list[tuple[int, str]])
        """Ranks that the launcher has started, each with its host; absent if ranks are local."""
        self.outcomes = RecordFile(path / "outcomes.json", list[RankOutcome])
        """Measurements of all ranks, written by rank 0 once all ranks have passed their checks."""
        self.launcher_log = path / LAUNCHER_LOG
        """The output of the command that starts the ranks on several nodes."""

    node_evidence = _record("node-{}.json", NodeEvidence)
    """File of what was recorded on a host, written once the last rank there has ended."""
    samples = _path("samples-{}.jsonl")
    """Readings of the GPU sampler on a host."""
    environment = _record("environment-{}.json", Environment)
    """Environment of a node; the file name contains the node's name as used by the launcher."""
    refusal = _path("environment-{}.refusal")
    """Reason why a node is unusable, in one line; present instead of the environment."""
    output = _path("rank-{}.log")
    """Standard output and standard error of a rank; absent unless the rank failed."""
    stacks = _path("rank-{}.stacks")
    """Stack traces of the rank's threads at the timeout; absent without a timeout."""
    command_outcome = _record("rank-{}.command.json", CommandOutcome)
    """Windows timed from the output of the rank's command; present instead of `outcomes`."""
    figures = _record("rank-{}.figures.json", FigureOutcome)
    """Figures that the rank's command printed; present instead of `command_outcome`."""
    software = _record("rank-{}.software.json", ProcessSoftware)
    """Software of the processes of the rank's command."""
    started = _path("rank-{}.started")
    """File with the numbers of the ranks that a command has started on a node."""
    probe = _record("rank-{}.probe.json", NodeProbe)
    """The rank's measurements of its node and of the links to other nodes."""
    failure = _record("rank-{}.failure.json", RankFailure)
    """The rank's own report of the error that ended it."""

    def host_names(self) -> list[str]:
        """Return the hosts of the run, as named by the launcher."""
        return self.hosts.read_text(encoding="utf-8").split()

    def host_of_ranks(self) -> dict[int, str]:
        """Return the host of each rank that the launcher has started; empty if ranks are local."""
        return dict(self.launched.read_if_left() or ())

    @property
    def variable(self) -> str:
        """Environment variable, as `NAME=value`, that marks all processes of the run's command."""
        return f"GPUSCALE_RUN={self.path.absolute()}"

    def read_progress(self) -> tuple[str, int, int] | None:
        """Return the progress of the run as (stage, done, total); None before the first report."""
        try:
            stage, done, total = self.progress.read_text(encoding="utf-8").split("\t")
        except (OSError, ValueError):
            return None
        return stage, int(done), int(total)

    def nodes(self) -> tuple[NodeEvidence, ...]:
        """Return the evidence that nodes have written so far, sorted by the names of the nodes."""
        paths = sorted(self.path.glob("node-*.json"))
        left = [RecordFile(path, NodeEvidence).read_if_left() for path in paths]
        return tuple(filter(None, left))

    def wait_for_results(self, job: str, hosts: Sequence[str], ranks: int) -> None:
        """Wait up to 30 s for the result files of the ranks' task `job` to appear on this node."""
        if job == "describe":
            paths = [self.environment(host).path for host in hosts]
        elif job == "probe":
            paths = [self.probe(rank).path for rank in range(ranks)]
        else:
            paths = [self.node_evidence(host).path for host in {*self.host_of_ranks().values()}]
            # One process of a command reports for all ranks.
            paths.append(self.outcomes.path if job == "rank" else self.enough)
        deadline_s = time.monotonic() + _VISIBLE_S
        for path in paths:
            while time.monotonic() < deadline_s:
                # Listing the folder makes a network file system refresh its cache.
                if path in self.path.iterdir() and path.stat().st_size > 0:
                    break
                time.sleep(_LOOK_S)

    def failures(self) -> list[RankFailure]:
        """Return the failure records that ranks have written, oldest first."""
        paths = self.path.glob("rank-*.failure.json")
        in_order = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
        return [RecordFile(path, RankFailure).read() for path in in_order]


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees it incomplete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


@contextlib.contextmanager
def scratch_folder(prefix: str, *, within: Path | None = None) -> Iterator[Path]:
    """Provide a temporary folder in `within` or $TMPDIR; delete leftovers of killed processes."""
    place = Path(tempfile.gettempdir()) if within is None else within
    # A shared file system may keep locks per host, so that folders in use on another host look
    # unlocked. Host names contain no underscore.
    on_this_host = f"{prefix}{socket.gethostname()}_"
    for folder in place.glob(f"{on_this_host}*"):
        # The kernel releases the lock when the owner ends, even if the owner was killed.
        with contextlib.suppress(OSError), (folder / _OWNER).open("rb+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix=on_this_host, dir=place, ignore_cleanup_errors=True
        ) as name,
        contextlib.ExitStack() as held,
    ):
        # Some network file systems have no locks: folders on them are never removed as abandoned.
        with contextlib.suppress(OSError):
            claim = Path(name) / f"new-{_OWNER}"
            fcntl.flock(held.enter_context(claim.open("wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Rename the file only once it is locked, so that no process finds it unlocked.
            claim.rename(claim.with_name(_OWNER))
        yield Path(name)
