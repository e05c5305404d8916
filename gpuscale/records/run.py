"""One run, a fresh start of all ranks of one (case, strategy, gpus), and those of one session."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuscale.base.counters import values_problem
from gpuscale.base.strategies import COMMAND, STRATEGIES
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.metrics import METRICS, STEP_TIME, measured_problem
from gpuscale.records.record import (
    Bytes,
    Count,
    Duration,
    Gpus,
    Line,
    Lines,
    Moment,
    Name,
    Number,
    PositiveCount,
    Record,
    Seconds,
    Shape,
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


class Run(Record, frozen=True, kw_only=True):
    """The sampling unit of every statistic: one fresh start of all ranks.

    `measured` is what it measured; the fields below `failure` are evidence beside it, each of
    which may be absent.
    """

    configuration: Configuration
    gpus: Gpus
    index: PositiveCount = 1
    """1 for the first run of its (case, strategy, gpus)."""
    batch_per_gpu: PositiveCount | None = None
    """None of a command that failed before its lines told it."""
    sample_shape: Shape | None = None
    samples_per_epoch: PositiveCount | None = None
    """Training samples of the case, over all GPUs."""
    allocation: Name | None = None
    """The job that made it and its nodes, whose state all runs in it share; None is the job of
    the results file that holds it."""
    measured: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Values by the names of `METRICS`; empty for a run that failed."""
    failure: Failure | None = None
    started_at_s: UnixTime | None = None
    wall_s: Duration | None = None
    startup_s: Duration | None = None
    """Seconds from the launch until every rank had joined the process group."""
    warmup_steps: Count | None = None
    warmup_s: Duration | None = None
    steps_per_window: PositiveCount | None = None
    reported_step_s: Seconds | None = None
    """Median of the seconds per step that a command's own lines report; None where they do not."""
    windows: tuple[Window, ...] = ()
    """Of synchronised training: the ones that count."""
    unsynced_windows: tuple[Window, ...] = ()
    """The same steps without gradient synchronisation, measured in turn with `windows`; of a
    pipeline on one GPU those by micro-batches, beside the whole batch at once."""
    ranks: tuple[RankReport, ...] = ()
    gpu_summaries: tuple[GpuSummary, ...] = ()
    telemetry_absent: Line | None = None
    """Why there are no GPU summaries; None where there are."""
    host_load: HostLoad | None = None

    def __post_init__(self) -> None:
        if problem := next(_problems(self), None):
            raise ValueError(problem)

    @property
    def key(self) -> EntryKey:
        """The table row that this run belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from others, also where two began at once or nobody recorded when."""
        return (self.key, self.configuration, self.index, self.started_at_s, *self.measured.items())

    @property
    def ranks_in_order(self) -> list[RankReport]:
        """The ranks as windows have their times, by number; they are recorded as they end."""
        return sorted(self.ranks, key=lambda report: report.rank)

    @property
    def is_valid(self) -> bool:
        """True for a run that ended with a step time and passed the checks after it."""
        return self.failure is None and STEP_TIME in self.measured

    @property
    def step_time_s(self) -> float:
        """Seconds per step of a valid run; any other has none, which is a ValueError."""
        if not self.is_valid:
            raise ValueError(f"{self.key.label}, run {self.index} has no step time")
        return self.measured[STEP_TIME]

    @property
    def log_step_time(self) -> float:
        """Natural logarithm of the step time: the one number that judging uses."""
        return math.log(self.step_time_s)

    @property
    def synchronization_s(self) -> float | None:
        """Seconds per step that gradient synchronisation adds, by medians, so also below 0.

        On one rank that is the wrapper's own handling of gradients; None where it was not measured.
        """
        if not self.windows or not self.unsynced_windows or not self.steps_per_window:
            return None
        with_s, without_s = (
            statistics.median(w.time_s for w in windows)
            for windows in (self.windows, self.unsynced_windows)
        )
        return (with_s - without_s) / self.steps_per_window


def busy_loads(runs: Iterable[Run]) -> list[HostLoad]:
    """The loads of those runs whose host was busy, the heaviest first."""
    busy = [run.host_load for run in runs if run.host_load and run.host_load.is_busy]
    return sorted(busy, key=lambda load: (-load.load_average, -(load.gpu_processes or 0)))


class Header(Record, frozen=True, kw_only=True):
    """The first line of a results file, without its format and version."""

    created_at: Moment
    gpuscale_version: Name
    environment: Environment
    injections: tuple[Name, ...] = ()
    """Faults that were made on purpose: such results never pass for real ones."""
    left_out: Line | None = None
    """Why no other night is compared with this one, as `gpuscale leave-out` was told."""


class Results(Header, frozen=True, kw_only=True):
    """A results file in memory: its header and its runs, in the order they were measured."""

    runs: tuple[Run, ...] = ()

    @property
    def allocation(self) -> str:
        """The job that the file was begun in: its id, or host and time."""
        return self.environment.job_id or f"{self.environment.host} {self.created_at}"

    def allocation_of(self, run: Run) -> str:
        """The same of one of the runs, which a resumed file may have from another job."""
        return run.allocation or self.allocation


def without_repeated(read: Iterable[Results]) -> list[Results]:
    """The results with each run once, in the first of them: twice, it would narrow intervals.

    A run of results that are left out is left out of all.
    """
    seen: set[tuple[object, ...]] = set()
    kept = {}
    for at, results in sorted(enumerate(read), key=lambda each: each[1].left_out is None):
        runs = {run.identity: run for run in results.runs}
        first = tuple(run for identity, run in runs.items() if identity not in seen)
        seen.update(runs)
        kept[at] = msgspec.structs.replace(results, runs=first)
    return [kept[at] for at in sorted(kept)]


def with_measured(run: Run) -> Run:
    """The run with every metric that its evidence tells."""
    values = ((metric.name, metric.of(run)) for metric in METRICS)
    return msgspec.structs.replace(
        run, measured={name: float(value) for name, value in values if value is not None}
    )


def without_windows(run: Run) -> Run:
    """The run as a baseline keeps it: all but its windows."""
    return msgspec.structs.replace(
        run,
        steps_per_window=None,
        reported_step_s=None,
        windows=(),
        unsynced_windows=(),
        gpu_summaries=tuple(msgspec.structs.replace(s, windows=()) for s in run.gpu_summaries),
    )


def _problems(run: Run) -> Iterator[str]:
    if problem := measured_problem(run.measured):
        yield problem
    if run.is_valid and run.batch_per_gpu is None:
        yield "batch_per_gpu: a run with a step time says how many samples a step had"
    numbers = [report.rank for report in run.ranks]
    if len(set(numbers)) < len(numbers):
        yield f"ranks: each rank is expected once, found {numbers[:20]}"
    if run.windows and run.steps_per_window is None:
        yield "steps_per_window: a run with windows says how many steps each had"
    for position, summary in enumerate(run.gpu_summaries):
        if len(summary.windows) not in (0, len(run.windows)):
            yield (
                f"gpu_summaries[{position}].windows: expected one for each of the run's "
                f"{len(run.windows)} windows, or none; found {len(summary.windows)}"
            )
    if run.failure is None and run.ranks:
        yield from _training_problems(run)


def _training_problems(run: Run) -> Iterator[str]:
    """Why ranks that ended well did not train together."""
    # The lines of a command do not tell how long each rank was busy.
    fewest = 0 if run.configuration.strategy == COMMAND else len(run.ranks)
    for name, windows in (("windows", run.windows), ("unsynced_windows", run.unsynced_windows)):
        for position, window in enumerate(windows):
            if len(window.busy_s) not in (fewest, len(run.ranks)):
                yield (
                    f"{name}[{position}].busy_s: expected a number for each of "
                    f"{len(run.ranks)} ranks, found {len(window.busy_s)}"
                )
    demands = STRATEGIES.get(run.configuration.strategy)
    digests = {report.parameter_digest for report in run.ranks} - {None}
    if demands is not None and demands.ranks_agree and len(digests) > 1:
        yield (
            "ranks: their parameter_digest differ, so the ranks did not train together; such a "
            "run has a 'failure' of kind 'invalid'"
        )
