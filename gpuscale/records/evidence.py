"""Evidence recorded with a run: windows, ranks, GPUs, failures, nodes and their software."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from posixpath import basename
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuscale.base.errors import FieldError
from gpuscale.records import record
from gpuscale.records.environment import Environment, without_software
from gpuscale.records.gpu_and_port_counters import values_problem
from gpuscale.records.probes import Port

FailureKind = Literal[
    "raised",
    "out_of_memory",
    "system",
    "killed",
    "timeout",
    "launch",
    "invalid",
    "unread",
    "unsteady",
]
"""Kinds of failures. `system`: an exception caused by a GPU, network or file system; `unread`:
steps or figures were not found in a command's output; `unsteady`: the step time was not stable."""


class Phases(record.Record, frozen=True, kw_only=True):
    """Seconds that one rank spends in each phase of training steps, for a window or per step.

    Phases are contiguous and add up to the total time. On CUDA, a phase is the time between events
    on the stream; if the device waits for the host, the wait belongs to the phase that caused it.
    `backward_s` includes the exposed communication of synchronised steps, because events cannot
    separate it from computing.
    """

    data_s: record.Duration
    """Time spent waiting for the next batch."""
    h2d_s: record.Duration
    """Time spent copying the batch to the device."""
    forward_s: record.Duration
    """Time spent computing the model's output and the loss."""
    backward_s: record.Duration
    optimizer_s: record.Duration
    """Time spent clearing gradients, and in the optimiser's and loss scaler's steps."""
    wait_s: record.Duration = 0.0
    """Time spent waiting for other pipeline stages between micro-batches, and for transfers."""

    def scaled(self, factor: float) -> "Phases":
        """Return the phases multiplied by a factor, such as 1 / (steps per window)."""
        seconds = msgspec.structs.asdict(self)
        return Phases(**{phase: time_s * factor for phase, time_s in seconds.items()})


class Window(record.Record, frozen=True, kw_only=True):
    """A group of consecutive steps timed together, from barrier to barrier."""

    time_s: record.Seconds
    """Time of the slowest rank, from the opening barrier to the closing synchronisation."""
    started_at_s: record.UnixTime
    """Time at which rank 0 opened the window."""
    busy_s: tuple[record.Seconds, ...]
    """Time of each rank, in order of rank, without the wait at the closing barrier."""
    phases: Phases | None = None
    """Phases of the rank with the run's slowest pace, in seconds for the whole window."""


def median_window_s(windows: Sequence[Window]) -> float:
    """Return the median duration of the windows, in seconds."""
    return statistics.median(window.time_s for window in windows)


class RankReport(record.Record, frozen=True, kw_only=True):
    """Host, devices, memory, pace and results of one rank; a field is None if unknown."""

    rank: record.Number
    host: record.Name
    local_rank: record.Number | None = None
    devices: tuple[record.Number, ...] = ()
    """Numbers of the rank's CUDA devices, as seen in the job; empty on CPU."""
    device_uuids: tuple[record.Line, ...] = ()
    parameter_digest: record.Name | None = None
    """SHA-256 of all parameters; equal on all data-parallel ranks that train together."""
    final_loss: Annotated[float, Meta(ge=-1e300, le=1e300)] | None = None
    """Loss of the last step; None if unknown or not finite."""
    peak_memory_bytes: record.Bytes | None = None
    """Peak CUDA memory allocated on any of the rank's devices; None on CPU."""
    peak_host_memory_bytes: record.Bytes | None = None
    """Peak resident set size of the process."""
    pace_s: record.Seconds | None = None
    """Median seconds per step of this rank, excluding waits for other ranks, from unsynchronised
    windows; for a single rank or a pipeline, from synchronised windows."""
    phases: Phases | None = None
    """Median of each phase over the synchronised windows, in seconds per step; time that
    synchronisation adds to the forward pass is counted in the backward pass."""


class Failure(record.Record, frozen=True, kw_only=True):
    """The reason why a run has no result."""

    kind: FailureKind
    message: record.Lines
    rank: record.Number | None = None
    host: record.Line | None = None
    detail: record.Lines = ""
    """Details such as a traceback, the last output or the stacks of the ranks; may be empty."""

    @property
    def normalised_message(self) -> str:
        """The message without digits, so that it is equal for all ranks with the same failure."""
        return re.sub(r"\d+", "", self.message)


class GpuSummary(record.Record, frozen=True, kw_only=True):
    """Telemetry of one GPU, summarised over a run; a field is None if not reported."""

    uuid: record.Name
    name: record.Line | None = None
    samples: record.Count
    absent: tuple[record.Line, ...] = ()
    """Counters that could not be read, or not in all samples, each with the reason."""
    values: Mapping[str, int | float] = {}
    """Values of the available counters by name (see `records/gpu_and_port_counters.py`)."""
    clock_event_reasons: Mapping[record.Line, record.Share] | None = None
    """Share of samples in which each clock event reason, such as `sw_power_cap`, was active."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise FieldError(*problem.split(": ", 1))


BUSY_SHARE = 0.1
"""Largest share of a host's cores that other processes may use without making it busy."""


class HostLoad(record.Record, frozen=True, kw_only=True):
    """Load on a node from processes that do not belong to the run."""

    other_cores: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """Mean number of cores that other processes used during the run; None if unknown."""
    cores: record.PositiveCount
    """Number of cores on which the run's processes may run."""
    gpu_processes: record.Count | None = None
    """Number of other processes that computed on the run's GPUs before the run; None if unknown."""

    @property
    def is_busy(self) -> bool:
        """True if other processes use over `BUSY_SHARE` of the cores, or use the run's GPUs."""
        return self.weight[0] > BUSY_SHARE or bool(self.gpu_processes)

    @property
    def weight(self) -> tuple[float, int]:
        """Sort key that increases with the load from other processes."""
        return (self.other_cores or 0.0) / self.cores, self.gpu_processes or 0


def normalised(package: str) -> str:
    """Return the name of a package in the normalised form of PEP 503."""
    return re.sub(r"[-_.]+", "-", package).lower()


class Library(record.Record, frozen=True, kw_only=True):
    """A shared library that a process has loaded."""

    name: record.Name
    """Name of the library, such as `NCCL`."""
    path: record.Line
    """Path of the library's file, as the process sees it, with symbolic links resolved."""
    version: record.Line | None = None
    """Version that the library itself reports; None if it was not queried or reports none."""

    @property
    def label(self) -> str:
        """The version if known; otherwise the name of the file, which may include a version."""
        return self.version or basename(self.path)


class ProcessSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """Software and CPUs used by a command's processes on one host, or by one rank."""

    host: str
    libraries: tuple[Library, ...] = ()
    cpus: tuple[str, ...] = ()
    """Distinct lists of the CPUs on which the processes may run, such as `0-7,64-71`."""
    software: Environment = without_software()
    """Environment in which at most the software of the command's Python interpreter is known."""


def merged(libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Return the libraries sorted by name and path, without exact duplicates."""
    return tuple(sorted(set(libraries), key=lambda library: (library.name, library.path)))


class NodeEvidence(record.Record, frozen=True, kw_only=True):
    """Load, settings, network and software of a node, collected before, during and after a run."""

    host: record.Name
    load: HostLoad | None = None
    settings: Mapping[record.Name, record.Line] = {}
    """Settings of the host that affect performance, such as `governor`."""
    ports: tuple[Port, ...] = ()
    """Network ports of the host, whose counters include the traffic of other jobs."""
    connections: Mapping[record.Name, record.Line] = {}
    """Properties of the ranks' connections, such as `channels`, from NCCL's or RCCL's log."""
    libraries: tuple[Library, ...] = ()
    """Libraries that the run's processes on the node had loaded near the end of the run."""
    cpus: tuple[record.Line, ...] = ()
    """Distinct lists of the CPUs on which ranks may run, such as `0-7,64-71`."""
    absent: Mapping[record.Name, record.Line] = {}
    """Reason why a setting or other evidence could not be read, by name."""
    cost_s: record.Seconds | None = None
    """Time taken to collect the evidence."""
