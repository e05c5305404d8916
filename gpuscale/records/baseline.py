"""Reference results of one cluster: measured runs, or published numbers with their source."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from gpuscale.base.errors import FieldError
from gpuscale.base.units import counted
from gpuscale.records.configuration import DataKind, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.probe import Probe
from gpuscale.records.record import (
    Count,
    Day,
    Gpus,
    Line,
    Moment,
    Name,
    PositiveCount,
    Record,
    SamplesPerSecond,
    Seconds,
)
from gpuscale.records.run import Run
from gpuscale.records.tolerances import Tolerances

Timed = Literal["job", "training_loop", "epoch"]


class Hardware(Record, frozen=True, kw_only=True):
    """The hardware that a baseline was measured on; a field is None if it was not recorded."""

    device: Name
    gpu_name: Name | None = None
    """GPU name as published or as CUDA reports it; comparisons use only the model (`V100`)."""
    gpus_per_node: Gpus | None = None
    cpu_model: Line | None = None
    system: Line | None = None
    """System and partition that another tool measured, such as `lumi:gpu`."""

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.gpu_name is not None:
            problem = "a machine of device 'cpu' has no GPU; remove it or say 'cuda'"
            raise FieldError("gpu_name", problem)


class Source(Record, frozen=True, kw_only=True):
    """The publication that a baseline's figures come from."""

    title: Name
    url: Line | None = None
    published: Line | None = None
    note: Line | None = None


class PublishedFigure(Record, frozen=True, kw_only=True):
    """One published result: times of a fixed amount of training, a throughput, or a metric's value.

    Exactly one of `times_s`, `samples_per_s` and `value` is given, since times include start-up and
    validation, and a throughput does not.
    """

    case: Name
    strategy: Name
    gpus: Gpus
    batch_per_gpu: PositiveCount | None = None
    """Samples per GPU and step; None for a metric, which counts no samples."""
    runs: PositiveCount = 1
    """Number of repetitions of the measurement."""
    nodes: Gpus = 1
    times_s: tuple[Seconds, ...] = ()
    """Wall-clock seconds of each repetition, such as an epoch of a job."""
    timed: Timed | None = None
    """Part of the training that each value in `times_s` covers."""
    discard_first: Count = 0
    """Number of values at the start of `times_s` that `mean_time_s` excludes."""
    samples_per_s: SamplesPerSecond | None = None
    value: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Reference value of `metric` in another tool's records; its spread between runs is unknown."""
    metric: OpenMetric | None = None
    nights: Mapping[Day, Annotated[float, msgspec.Meta(ge=1e-9, le=1e15)]] = msgspec.field(
        default_factory=dict
    )
    """Mean result by date, in the unit of the figure; empty if the dates are unknown."""
    precision: Name | None = None
    """Numerical precision; None if the source does not name it."""
    data: DataKind | None = None
    """Kind of training data; None if the source does not name it."""
    note: Line | None = None

    def __post_init__(self) -> None:
        times = len(self.times_s)
        if (times > 0) + (self.samples_per_s is not None) + (self.value is not None) != 1:
            problem = "expected exactly one of 'times_s', 'samples_per_s' and 'value'"
            raise FieldError("", problem)
        if (self.metric is None) != (self.value is None):
            raise FieldError("", "'value' belongs to a 'metric': give both, or none")
        if (self.metric is None) == (self.batch_per_gpu is None):
            raise FieldError("batch_per_gpu", "is needed, except of a 'metric', which has none")
        if (times > 0) != (self.timed is not None):
            problem = "'timed' belongs to 'times_s': give both, or none"
            raise FieldError("", problem)
        if self.discard_first and self.discard_first >= times:
            problem = (
                f"{self.discard_first} of {times} times are discarded; at least one must be left"
            )
            raise FieldError("discard_first", problem)
        if self.nodes > self.gpus:
            raise FieldError("nodes", f"{self.gpus} GPUs cannot lie on {self.nodes} nodes")

    @property
    def key(self) -> EntryKey:
        """Key of the figure's row in tables: case, strategy and number of GPUs."""
        return EntryKey(self.case, self.strategy, self.gpus)

    def cost(self, global_batch: int) -> float | None:
        """Return the published cost, comparable with that of a run; None for wall-clock times."""
        if self.metric is not None and self.value is not None:
            return self.metric.cost(self.value, self.gpus)
        return None if self.samples_per_s is None else global_batch / self.samples_per_s

    @property
    def mean_time_s(self) -> float | None:
        """Mean of the times that are not discarded, in seconds; None for a throughput figure."""
        kept = self.times_s[self.discard_first :]
        return sum(kept) / len(kept) if kept else None


class BaselineChange(Record, frozen=True, kw_only=True):
    """One approved change to a baseline: the reason, and the runs that were replaced."""

    at: Moment
    reason: Line
    by: Name | None = None
    """Login name of the person who made the change."""
    replaced: tuple[Run, ...] = ()
    """Runs that were replaced, without evidence such as windows and telemetry."""
    added: tuple[Line, ...] = ()
    """Names of the rows that had no measured run before the change."""
    environments: Mapping[Line, Environment] = msgspec.field(default_factory=dict)
    """Environments, by allocation, of allocations whose runs were all replaced."""


class Baseline(Record, frozen=True, kw_only=True):
    """Contents of a baseline file: measured runs without their windows, and published figures."""

    name: Name
    cluster: Name
    hardware: Hardware
    source: Source | None = None
    recorded_at: Moment | None = None
    recorded_by: Name | None = None
    """Login name of the person who recorded the baseline."""
    gpuscale_version: Name | None = None
    """Version of gpuscale used for the measurements; several are separated by commas."""
    expires_on: Day | None = None
    """Last day on which the baseline is valid, such as `2027-05-01`; None if it never expires."""
    tolerances: Tolerances = Tolerances()
    published: tuple[PublishedFigure, ...] = ()
    environments: Mapping[Line, Environment] = msgspec.field(default_factory=dict)
    """Machine and software that the runs used, by allocation."""
    history: tuple[BaselineChange, ...] = ()
    """Changes since the baseline was recorded, oldest first."""
    probes: tuple[Probe, ...] = ()
    runs: tuple[Run, ...] = ()
    """Measured runs, each with the name of its allocation."""

    def __post_init__(self) -> None:
        if problem := next(_problems(self), None):
            raise problem


def _problems(baseline: Baseline) -> Iterator[FieldError]:
    if baseline.published and baseline.source is None:
        yield FieldError("", "published figures need a 'source'; name where they come from")
    per_node = baseline.hardware.gpus_per_node
    seen: set[EntryKey] = set()
    for position, figure in enumerate(baseline.published):
        place = f"published[{position}]"
        if per_node is not None and figure.gpus > figure.nodes * per_node:
            nodes = counted(figure.nodes, "node")
            problem = f"{figure.gpus} GPUs do not fit on {nodes} of {per_node}"
            yield FieldError(f"{place}.nodes", problem)
        if figure.key in seen:
            problem = f"{figure.key.label} occurs twice; keep one, or name the cases apart"
            yield FieldError(place, problem)
        seen.add(figure.key)
    workloads: dict[object, object] = {}
    for position, run in enumerate(baseline.runs):
        place = f"runs[{position}]"
        if not run.is_valid or run.allocation is None:
            yield FieldError(place, "a baseline keeps valid runs with their 'allocation' only")
        if run.configuration.device != baseline.hardware.device:
            problem = (
                f"measured on '{run.configuration.device}', but hardware says "
                f"'{baseline.hardware.device}'; correct one of the two"
            )
            yield FieldError(f"{place}.configuration.device", problem)
        workload = (run.batch_per_gpu, run.sample_shape)
        if workloads.setdefault((run.configuration, run.gpus), workload) != workload:
            problem = f"{run.key.label} has another batch or sample shape in an earlier run"
            yield FieldError(place, f"{problem}; make one baseline for each")
