"""Evidence that a run leaves: windows, phases, rank reports, telemetry and failures."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuscale.base.counters import values_problem
from gpuscale.base.errors import FieldError
from gpuscale.records.record import (
    Bytes,
    Count,
    Duration,
    Line,
    Lines,
    Name,
    Number,
    Record,
    Seconds,
    Share,
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
"""Kinds of failures; `system` is an exception caused by a GPU, the network or a file system, and
`unread` means that a command prints step counts in an unknown format."""
# A look-up of the names in the table of counters is ten times as fast as a pattern.
Values = Mapping[str, int | float]


class Phases(Record, frozen=True, kw_only=True):
    """Seconds that one rank spends in each phase, per window or per step depending on the use.

    Phases follow each other without a gap and add up to the whole time. On CUDA a phase is the
    time between events on the stream; if the device waits for the host, the phase that caused the
    wait contains it. `backward_s` contains the exposed communication of synchronised steps, which
    events cannot separate.
    """

    data_s: Duration
    """Wait for the next batch."""
    h2d_s: Duration
    """Copy of the batch to the device."""
    forward_s: Duration
    """Computation of the model's output and the loss."""
    backward_s: Duration
    optimizer_s: Duration
    """Clearing the gradients, and the steps of the optimiser and the loss scaler."""
    wait_s: Duration = 0.0
    """Wait for other pipeline stages between micro-batches, and exposed transfers."""

    @property
    def total_s(self) -> float:
        """Sum of all phases."""
        seconds: tuple[float, ...] = msgspec.structs.astuple(self)
        return math.fsum(seconds)

    def scaled(self, factor: float) -> "Phases":
        """Return the phases multiplied by a factor, such as 1 / steps of the window."""
        seconds = msgspec.structs.asdict(self)
        return Phases(**{phase: time_s * factor for phase, time_s in seconds.items()})


class Window(Record, frozen=True, kw_only=True):
    """A group of consecutive steps timed together, from barrier to barrier."""

    time_s: Seconds
    """Time of the slowest rank, from the opening barrier to the closing synchronisation."""
    started_at_s: UnixTime
    """Time at which rank 0 opened the window."""
    busy_s: tuple[Seconds, ...]
    """Time of each rank, in order of rank, without the wait at the closing barrier."""
    phases: Phases | None = None
    """Phases of the rank with the run's slowest pace, in seconds for the whole window."""


class RankReport(Record, frozen=True, kw_only=True):
    """Evidence of one rank; a field is None if unknown."""

    rank: Number
    host: Name
    local_rank: Number | None = None
    devices: tuple[Number, ...] = ()
    """CUDA device numbers in this job; empty on CPU."""
    device_uuids: tuple[Line, ...] = ()
    numa_nodes: tuple[Number, ...] = ()
    """NUMA nodes of the CPUs that the rank may run on."""
    parameter_digest: Name | None = None
    """SHA-256 of all parameters; equal on all data-parallel ranks that train together."""
    final_loss: Annotated[float, Meta(ge=-1e300, le=1e300)] | None = None
    """Loss of the last step; None if unknown or not finite."""
    peak_memory_bytes: Bytes | None = None
    """Peak CUDA memory allocated on any of the rank's devices; None on CPU."""
    peak_host_memory_bytes: Bytes | None = None
    """Peak resident set size of the process."""
    pace_s: Seconds | None = None
    """Median seconds per step of this rank without waiting for other ranks, from unsynchronised
    windows; for a single rank or a pipeline, from synchronised windows."""
    phases: Phases | None = None
    """Median of each phase over the synchronised windows, in seconds per step; time that
    synchronisation adds to the forward pass is counted in the backward pass."""


class Failure(Record, frozen=True, kw_only=True):
    """The reason why a run has no result."""

    kind: FailureKind
    message: Lines
    rank: Number | None = None
    host: Line | None = None
    detail: Lines = ""
    """Traceback or last state of the rank; empty if neither is known."""


class GpuWindow(Record, frozen=True, kw_only=True):
    """Telemetry of one device during one window."""

    samples: Count
    """Number of samples; if 0, the other fields are empty."""
    values: Values = msgspec.field(default_factory=dict)
    """Counter values as in `GpuSummary.values`, for counters that are summarised per window."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """Reasons as in `GpuSummary.clock_event_reasons`, with shares of this window's samples."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise FieldError(*problem.split(": ", 1))


class GpuSummary(Record, frozen=True, kw_only=True):
    """Telemetry of one device during the windows of a run; a field is None if not reported."""

    uuid: Name
    name: Line | None = None
    samples: Count
    absent: tuple[Line, ...] = ()
    """Counters that could not be read, each with the reason."""
    values: Values = msgspec.field(default_factory=dict)
    """Counter values by name (see `gpuscale.base.counters`), without unavailable counters."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """Share of samples with each reason for throttled clocks, as nvidia-smi or AMD names it
    (`sw_power_cap`, `ppt`)."""
    xids: tuple[Count, ...] | None = None
    """Numbers of the driver's error events, in order; empty if the driver reported no errors."""
    windows: tuple[GpuWindow, ...] = ()
    """Telemetry of each window of the run, in order."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise FieldError(*problem.split(": ", 1))
