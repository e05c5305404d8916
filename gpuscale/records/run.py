"""One run, a fresh start of all ranks of one (case, strategy, gpus), and those of one session."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from gpuscale.base.strategies import COMMAND, STRATEGIES
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.metrics import METRICS, STEP_TIME, measured_problem
from gpuscale.records.record import (
    Count,
    Duration,
    Gpus,
    Line,
    Moment,
    Name,
    PositiveCount,
    Record,
    Seconds,
    Shape,
    UnixTime,
)
from gpuscale.records.run_evidence import (
    Failure,
    GpuSummary,
    HostLoad,
    RankReport,
    Window,
)


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


def _median_step_time_s(run: Run) -> float | None:
    if not run.windows or not run.steps_per_window:
        return None
    return statistics.median(w.time_s for w in run.windows) / run.steps_per_window


def _exposed_communication_s(run: Run) -> float | None:
    if len(run.ranks) < 2:
        return None
    demands = STRATEGIES.get(run.configuration.strategy)
    if demands is None or not demands.micro_batches:
        return run.synchronization_s
    # The wait of the stage that waits least: the bubble, and transfers that nothing hides.
    paces_s = [rank.pace_s for rank in run.ranks if rank.pace_s is not None]
    step_time_s = _median_step_time_s(run)
    return None if step_time_s is None or not paces_s else step_time_s - max(paces_s)


def _peak_memory_bytes(run: Run) -> float | None:
    peaks = [rank.peak_memory_bytes for rank in run.ranks if rank.peak_memory_bytes is not None]
    return max(peaks, default=None)


def _energy_per_sample_j(run: Run) -> float | None:
    known = [s.values["energy_j"] for s in run.gpu_summaries if "energy_j" in s.values]
    if not known or len(known) < len(run.gpu_summaries):
        return None
    if run.steps_per_window is None or run.batch_per_gpu is None:
        return None
    samples = len(run.windows) * run.steps_per_window * run.batch_per_gpu * run.gpus
    return sum(known) / samples if samples else None


_MEASURES: Mapping[str, Callable[[Run], float | None]] = {
    STEP_TIME: _median_step_time_s,
    "exposed_communication_s": _exposed_communication_s,
    "peak_memory_bytes": _peak_memory_bytes,
    "energy_per_sample_j": _energy_per_sample_j,
}
"""How each metric is measured from the evidence of a run; None if the evidence lacks it."""


def with_measured(run: Run) -> Run:
    """Return the run with every metric that its evidence allows."""
    values = {metric.name: _MEASURES[metric.name](run) for metric in METRICS}
    measured = {name: float(value) for name, value in values.items() if value is not None}
    return msgspec.structs.replace(run, measured=measured)


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
