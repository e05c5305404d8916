"""Runs, each of which is one fresh start of all ranks, and results files with many runs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gpuscale.base.errors import FieldError
from gpuscale.base.strategies import COMMAND, STRATEGIES, is_pipeline
from gpuscale.records import record
from gpuscale.records.configuration import Configuration, RowMixin
from gpuscale.records.environment import Environment
from gpuscale.records.evidence import (
    Failure,
    GpuSummary,
    HostLoad,
    NodeEvidence,
    RankReport,
    Window,
    median_window_s,
)
from gpuscale.records.metrics import STEP_TIME, validate_measured
from gpuscale.records.probes import Probe


class Run(RowMixin, record.Record, frozen=True, kw_only=True):
    """One fresh start of all ranks; all statistics treat a run as one sample.

    `measured` holds the metrics. The fields after `failure` are evidence; any may be absent.
    """

    configuration: Configuration
    gpus: record.Gpus
    index: record.PositiveCount = 1
    """Number of the run, from 1, among runs of the same case, strategy and number of GPUs."""
    batch_per_gpu: record.PositiveCount | None = None
    """Samples per GPU and step; None if a command failed before it printed the batch size."""
    sample_shape: record.Shape | None = None
    samples_per_epoch: record.PositiveCount | None = None
    """Number of training samples in one epoch, over all GPUs."""
    allocation: record.Name | None = None
    """Job that executed the run; runs of one job share the nodes and their state. None for the job
    that created the results file."""
    measured: Mapping[str, float] = {}
    """Measured values by metric name, as in `METRICS`; empty if the run failed."""
    failure: Failure | None = None
    started_at_s: record.UnixTime | None = None
    wall_s: record.Duration | None = None
    startup_s: record.Duration | None = None
    """Seconds from the launch until every rank had joined the process group or, with an injected
    slowdown, had timed itself."""
    warmup_steps: record.Count | None = None
    warmup_s: record.Duration | None = None
    steps_per_window: record.PositiveCount | None = None
    windows: tuple[Window, ...] = ()
    """Windows of synchronised training, from which the metrics are computed."""
    unsynced_windows: tuple[Window, ...] = ()
    """Windows without gradient synchronisation, measured between `windows`. For a pipeline on one
    GPU, they compute in micro-batches, while `windows` compute the whole batch at once."""
    ranks: tuple[RankReport, ...] = ()
    gpu_summaries: tuple[GpuSummary, ...] = ()
    telemetry_absent: record.Line | None = None
    """Reason why some or all GPU summaries are missing; else None."""
    nodes: tuple[NodeEvidence, ...] = ()
    """Evidence of each node that had ranks."""

    def __post_init__(self) -> None:
        validate_measured(self.measured, self.configuration.metric)
        if STEP_TIME in self.measured and self.batch_per_gpu is None:
            raise FieldError("batch_per_gpu", "is needed for a run with a step time")
        numbers = [report.rank for report in self.ranks]
        if len(set(numbers)) < len(numbers):
            raise FieldError("ranks", f"each rank is expected once, found {numbers[:20]}")
        if self.windows and self.steps_per_window is None:
            raise FieldError("steps_per_window", "is needed for a run with windows")
        if self.failure is None and self.ranks:
            _validate_training(self)

    def __repr__(self) -> str:
        """Return a short label, because pytest prints the repr if an assertion on a run fails."""
        return f"<{self.label}, run {self.index}>"

    @property
    def identity(self) -> tuple[object, ...]:
        """Deduplication key; includes measured values, as start times may be equal or unknown."""
        return self.configuration, self.gpus, self.index, self.started_at_s, *self.measured.items()

    @property
    def is_valid(self) -> bool:
        """True if the run did not fail and its judged metric, usually the step time, is known."""
        metric = self.configuration.metric
        return self.failure is None and (metric.name if metric else STEP_TIME) in self.measured

    @property
    def step_time_s(self) -> float:
        """Seconds per step of a valid run."""
        return self.measured[STEP_TIME]

    @property
    def log_cost(self) -> float:
        """Natural log of the step time or, if another metric replaces it, of that metric's cost."""
        if (metric := self.configuration.metric) is None:
            return math.log(self.step_time_s)
        return math.log(metric.cost(self.measured[metric.name], self.gpus))

    @property
    def synchronization_s(self) -> float | None:
        """Seconds that gradient synchronisation adds to the median step time; None if unknown."""
        if not self.windows or not self.unsynced_windows or not self.steps_per_window:
            return None
        added_s = median_window_s(self.windows) - median_window_s(self.unsynced_windows)
        return added_s / self.steps_per_window


def nodes_of(runs: Iterable[Run]) -> list[NodeEvidence]:
    """Return the evidence of all nodes of all runs."""
    return [node for run in runs for node in run.nodes]


_SHARE_OF_BUSY = 0.25


def were_hosts_busy(runs: Sequence[Run]) -> bool:
    """True if other processes kept a host busy in at least a quarter of the runs."""
    return len(busy_hosts(runs)) >= max(1, _SHARE_OF_BUSY * len(runs))


def busy_hosts(runs: Iterable[Run]) -> list[tuple[str, HostLoad]]:
    """Return the busiest host, with its load, of each run that has a busy host; busiest first."""
    busy = []
    for run in runs:
        loads = [(node.host, node.load) for node in run.nodes if node.load and node.load.is_busy]
        busy += sorted(loads, key=lambda host: host[1].weight)[-1:]
    return sorted(busy, key=lambda host: host[1].weight, reverse=True)


class Header(record.Record, frozen=True, kw_only=True):
    """Contents of the first line of a results file, except the format and version."""

    created_at: record.Moment
    gpuscale_version: record.Name
    environment: Environment
    started_as: record.Line | None = None
    """Command line of the first session of the file; None if unknown."""
    injections: tuple[record.Name, ...] = ()
    """Faults injected on purpose; results with such faults never count as real measurements."""
    probes: tuple[Probe, ...] = ()
    """Probes of the devices; stored in a separate file next to the results file."""
    left_out: record.Line | None = None
    """Reason given to `gpuscale leave-out` for excluding these results; None if not excluded."""

    @property
    def why_excluded(self) -> str | None:
        """Reason to exclude these results from nightly histories; None if they are included."""
        faults = f"has injected faults ({', '.join(self.injections)})"
        return self.left_out or (faults if self.injections else None)


class Results(Header, frozen=True, kw_only=True):
    """Contents of a results file: the header, and the runs in the order of measurement."""

    runs: tuple[Run, ...] = ()
    folder: str = ""
    """Name of the night's folder that has the file, `2026-11-21_4711`; never stored; else empty."""

    @property
    def allocation(self) -> str:
        """Identifier of the job that created the file; if none, the host and creation time."""
        return self.environment.job_id or f"{self.environment.host} {self.created_at}"

    def allocation_of(self, run: Run) -> str:
        """Return the identifier of a run's job; a resumed file may have runs of several jobs."""
        return run.allocation or self.allocation


def deduplicated(read: Iterable[Results]) -> list[Results]:
    """Return the results without duplicate copies of runs, which would narrow confidence intervals.

    If a copy of a run is in results excluded by `gpuscale leave-out`, only that copy is kept.
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
    return median_window_s(run.windows) / run.steps_per_window


def _exposed_communication_s(run: Run) -> float | None:
    if len(run.ranks) < 2:
        return None
    if not is_pipeline(run.configuration.strategy):
        return run.synchronization_s
    # The stage that waits least waits only for the bubble and exposed transfers.
    paces_s = [rank.pace_s for rank in run.ranks if rank.pace_s is not None]
    step_time_s = _median_step_time_s(run)
    return None if step_time_s is None or not paces_s else step_time_s - max(paces_s)


def _peak_memory_bytes(run: Run) -> float | None:
    peaks = [rank.peak_memory_bytes for rank in run.ranks if rank.peak_memory_bytes is not None]
    return max(peaks, default=None)


def _energy_per_sample_j(run: Run) -> float | None:
    known = [s.values["energy_j"] for s in run.gpu_summaries if "energy_j" in s.values]
    samples = len(run.windows) * (run.steps_per_window or 0) * (run.batch_per_gpu or 0) * run.gpus
    is_known = known and len(known) == len(run.gpu_summaries) and samples
    return sum(known) / samples if is_known else None


_MEASURES: Mapping[str, Callable[[Run], float | None]] = {
    STEP_TIME: _median_step_time_s,
    "exposed_communication_s": _exposed_communication_s,
    "peak_memory_bytes": _peak_memory_bytes,
    "energy_per_sample_j": _energy_per_sample_j,
}
"""Functions that compute each metric of a run; they return None if evidence is missing."""


def with_measured(run: Run) -> Run:
    """Return the run with metrics computed from its evidence; return a failed run unchanged."""
    if run.configuration.metric is not None or run.failure is not None:
        return run
    values = {name: measure(run) for name, measure in _MEASURES.items()}
    measured = {name: float(value) for name, value in values.items() if value is not None}
    return msgspec.structs.replace(run, measured=measured)


def without_windows(run: Run, *, allocation: str) -> Run:
    """Return a copy of the run for storage in a baseline: without windows, with its allocation."""
    return msgspec.structs.replace(
        run, steps_per_window=None, windows=(), unsynced_windows=(), allocation=allocation
    )


def _validate_training(run: Run) -> None:
    """Raise a FieldError if windows lack busy times, or parameters wrongly differ between ranks."""
    # A command's lines do not show how long each rank was busy.
    fewest = 0 if run.configuration.strategy == COMMAND else len(run.ranks)
    for name, windows in (("windows", run.windows), ("unsynced_windows", run.unsynced_windows)):
        for position, window in enumerate(windows):
            if len(window.busy_s) not in (fewest, len(run.ranks)):
                count = f"{len(run.ranks)} ranks, found {len(window.busy_s)}"
                place = f"{name}[{position}].busy_s"
                raise FieldError(place, f"expected a number for each of {count}")
    demands = STRATEGIES.get(run.configuration.strategy)
    digests = {report.parameter_digest for report in run.ranks} - {None}
    if demands is not None and demands.ranks_agree and len(digests) > 1:
        problem = "parameter_digest differs; such a run has a 'failure' of kind 'invalid'"
        raise FieldError("ranks", problem)
