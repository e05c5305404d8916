"""The evidence that a run leaves: windows, phases, ranks, telemetry, failure; any may be absent."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuscale.base.counters import values_problem
from gpuscale.records.record import (
    Bytes,
    Count,
    Duration,
    Line,
    Lines,
    Name,
    Number,
    PositiveCount,
    Record,
    Seconds,
    UnixTime,
)

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
"""`system` is an exception that a GPU, the network or a file system caused; `unread` a command
whose lines count something in no format that is known."""
BUSY_LOAD_PER_CORE = 1.5
"""Of a host with other work than ours: ranks of the run before leave at most one for each core."""
Share = Annotated[float, Meta(ge=0, le=1)]
# Names need no pattern, which takes ten times as long as to look for them in the table.
Values = Mapping[str, int | float]


class Phases(Record, frozen=True, kw_only=True):
    """Seconds by phase: of one rank's window, or of its step, as the field that holds it says.

    They follow each other without a gap, so together they are the time itself. On CUDA a phase
    is the time between events on the stream: what the device waited for the host is in the
    phase that made it wait. `backward_s` contains the exposed communication of synchronised
    steps, which no event can tell from it.
    """

    data_s: Duration
    """Waiting for the next batch."""
    h2d_s: Duration
    """Copying the batch to the device."""
    forward_s: Duration
    """The model's output and the loss."""
    backward_s: Duration
    optimizer_s: Duration
    """Clearing gradients, the optimiser's step, and the loss scaler's."""
    wait_s: Duration = 0.0
    """Between the micro-batches of a pipeline: waiting for other stages, and transfers that
    nothing hides."""

    @property
    def total_s(self) -> float:
        """All phases together."""
        seconds: tuple[float, ...] = msgspec.structs.astuple(self)
        return math.fsum(seconds)

    def scaled(self, factor: float) -> "Phases":
        """All phases times a factor: a window's become a step's."""
        seconds = msgspec.structs.asdict(self)
        return Phases(**{phase: time_s * factor for phase, time_s in seconds.items()})


class Window(Record, frozen=True, kw_only=True):
    """A group of consecutive steps timed as one, from barrier to barrier."""

    time_s: Seconds
    """Of the slowest rank, from the opening barrier to the closing synchronisation."""
    started_at_s: UnixTime
    """When rank 0 opened the window."""
    busy_s: tuple[Seconds, ...]
    """Of each rank without its wait at the closing barrier, by rank."""
    phases: Phases | None = None
    """Of the run's slowest rank by its own pace, in seconds of the whole window."""


class RankReport(Record, frozen=True, kw_only=True):
    """Evidence of one rank; None is what is not known of it."""

    rank: Number
    host: Name
    local_rank: Number | None = None
    devices: tuple[Number, ...] = ()
    """CUDA device numbers in this job; empty on CPU."""
    device_uuids: tuple[Line, ...] = ()
    parameter_digest: Name | None = None
    """SHA-256 of all parameters: data-parallel ranks that train together agree."""
    final_loss: Annotated[float, Meta(ge=-1e300, le=1e300)] | None = None
    """The last step's loss; None also where it was not a finite number."""
    peak_memory_bytes: Bytes | None = None
    """Peak of the CUDA allocator over the rank's devices; None on CPU."""
    peak_host_memory_bytes: Bytes | None = None
    """Peak resident set of the process."""
    pace_s: Seconds | None = None
    """Median seconds per step of this rank alone, without waiting for the others: from the
    unsynchronised windows, or from the others where there is one rank or a pipeline."""
    phases: Phases | None = None
    """Median over the synchronised windows of each phase, in seconds per step; what
    synchronisation adds to the forward is in the backward."""


class Failure(Record, frozen=True, kw_only=True):
    """Why a run has no result."""

    kind: FailureKind
    message: Lines
    rank: Number | None = None
    host: Line | None = None
    detail: Lines = ""
    """The rank's traceback or last state; empty where it left none."""


class GpuWindow(Record, frozen=True, kw_only=True):
    """Telemetry of one device during one window."""

    samples: Count
    """With none, nothing else is known."""
    values: Values = msgspec.field(default_factory=dict)
    """As in `GpuSummary`, of those counters that windows have."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """As in `GpuSummary`."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise ValueError(problem)


class GpuSummary(Record, frozen=True, kw_only=True):
    """Telemetry of one device during a run's windows; None is what it did not offer."""

    uuid: Name
    name: Line | None = None
    samples: Count
    absent: tuple[Line, ...] = ()
    """Counters that could not be read, each with NVML's reason."""
    values: Values = msgspec.field(default_factory=dict)
    """Counters by the names of `gpuscale.base.counters`, but for those that are not offered."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """Why clocks were held back, as nvidia-smi names it (`sw_power_cap`), each with its share
    of the samples; a reason that never held is left out, so none at all is an empty mapping."""
    xids: tuple[Count, ...] | None = None
    """The driver's error events, in order; empty where it reported none."""
    windows: tuple[GpuWindow, ...] = ()
    """One for each window of the run, in order."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise ValueError(problem)


class HostLoad(Record, frozen=True, kw_only=True):
    """The other work of the host: of the session's, where a run has several; None is not known."""

    load_average: Annotated[float, Meta(ge=0, le=1e6)]
    """Over the minute before the run."""
    cores: PositiveCount
    """Of the host, whoever may use them."""
    cpu_pressure: Share | None = None
    """The part of the run in which some process waited for a CPU."""
    steal: Share | None = None
    """The part of the CPUs' time that a hypervisor gave to others."""
    gpu_processes: Count | None = None
    """Processes that computed on the run's GPUs before it began."""

    @property
    def is_busy(self) -> bool:
        """True where others had much to do, and more than the last run of ours leaves behind."""
        return self.load_average > BUSY_LOAD_PER_CORE * self.cores or bool(self.gpu_processes)
