"""Baselines: measured or published reference results of a cluster, with tolerances."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import asdict

from gpuscale.base.errors import FieldError
from gpuscale.base.host import UNRECORDED
from gpuscale.base.text import counted
from gpuscale.records import record
from gpuscale.records.configuration import Configuration, DataKind, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.metrics import METRICS_BY_NAME, Limits, OpenMetric
from gpuscale.records.probes import Probe
from gpuscale.records.run import Run

THROUGHPUT = "throughput"
SPEEDUP = "speedup"
JUDGED = (THROUGHPUT, SPEEDUP, *(name for name, metric in METRICS_BY_NAME.items() if metric.limits))
"""Names of the metrics for which tolerances can be overridden."""
Fraction = Annotated[float, Meta(ge=0, le=0.99)]
OkBound = Annotated[float, Meta(ge=1e-6, le=0.99)]
Timed = Literal["job", "training_loop", "epoch"]


class ToleranceOverride(record.Record, frozen=True, kw_only=True):
    """Limits that replace those in `Tolerances` for some rows, such as all rows of one case.

    None in `case`, `strategy` or `gpus` stands for any value. If `metric` is None, the limits apply
    to throughput and speedup. A limit that is None replaces nothing.
    """

    case: record.Name | None = None
    strategy: record.Name | None = None
    gpus: record.Gpus | None = None
    metric: record.Name | None = None
    margin: Fraction | None = None
    ok_bound: OkBound | None = None
    allocation_deviation: Fraction | None = None

    def __post_init__(self) -> None:
        if self.metric is not None and self.metric not in JUDGED:
            problem = f"expected one of {', '.join(JUDGED)}, found '{self.metric}'"
            raise FieldError("metric", problem)
        if not any(condition is not None for condition in self.conditions):
            raise FieldError("", "it applies to every row; set the limits in 'tolerances' itself")
        if (self.margin, self.ok_bound, self.allocation_deviation) == (None, None, None):
            names = "'margin', 'ok_bound' or 'allocation_deviation'"
            raise FieldError("", f"it sets no limit; give {names}, or remove it")

    @property
    def conditions(self) -> tuple[object, ...]:
        """Case, strategy, GPU count and metric to which the limits apply; each None if not set."""
        return (self.case, self.strategy, self.gpus, self.metric)


class Tolerances(record.Record, frozen=True, kw_only=True, omit_defaults=False):
    """Limits that decide what counts as a regression; a baseline file can change the defaults."""

    margin: Fraction = 0.02
    """Largest loss of throughput or speedup, as a fraction, that is never called a regression."""
    ok_bound: OkBound = 0.05
    """A row is ok only if the 95% upper bound of its loss is below this fraction."""
    allocation_deviation_time: Fraction = 0.01
    """Declared relative standard deviation of the step time between allocations."""
    allocation_deviation_speedup: Fraction = 0.005
    """Declared relative standard deviation of speedup and efficiency between allocations."""
    significance: Annotated[float, Meta(ge=1e-4, le=0.05)] = 0.01
    """One-sided p-value, adjusted for multiple tests, below which a change is significant."""
    published_within_node: Fraction = 0.10
    published_across_nodes: Fraction = 0.20
    overrides: tuple[ToleranceOverride, ...] = ()
    """Different limits for some rows; for each limit, the most specific override applies."""

    def __post_init__(self) -> None:
        conditions = [override.conditions for override in self.overrides]
        if len(set(conditions)) < len(conditions):
            twice = next(i for i, each in enumerate(conditions) if each in conditions[:i])
            problem = "the same rows as an earlier one; put their limits into one"
            raise FieldError(f"overrides[{twice}]", problem)

    def limits(self, key: EntryKey, metric: str) -> Limits:
        """Return the limits for one metric of one row, after applying all matching overrides."""
        spec = METRICS_BY_NAME.get(metric)
        declared = self.allocation_deviation_speedup
        if metric == THROUGHPUT:
            declared = self.allocation_deviation_time
        given = (spec and spec.limits) or Limits(
            margin=self.margin, ok_bound=self.ok_bound, allocation_deviation=declared
        )
        limits = asdict(given).items()
        return Limits(**{name: self._overridden(key, metric, name, own) for name, own in limits})

    def published_margin(self, key: EntryKey, metric: str, *, nodes: int) -> float:
        """Return the fraction by which a metric on `nodes` nodes may be worse than published."""
        default = self.published_within_node if nodes == 1 else self.published_across_nodes
        return self._overridden(key, metric, "margin", default)

    def _overridden(self, key: EntryKey, metric: str, name: str, default: float) -> float:
        limit, most = default, [0]
        for override in self.overrides:
            value: float | None = getattr(override, name)
            metrics = (override.metric,) if override.metric else (THROUGHPUT, SPEEDUP)
            # An override with more conditions wins; among equally many, earlier conditions win.
            given = [condition is not None for condition in override.conditions]
            weight = [sum(given), *given]
            pairs = zip(override.conditions, key, strict=False)
            fits = all(want in (None, has) for want, has in pairs)
            if fits and metric in metrics and value is not None and weight > most:
                limit, most = value, weight
        return limit


class Hardware(record.Record, frozen=True, kw_only=True):
    """The hardware that a baseline was measured on; a field is None if it was not recorded."""

    device: record.Name
    gpu_name: record.Name | None = None
    """GPU name, as published or as reported by CUDA; comparisons use only the model (`V100`)."""
    gpus_per_node: record.Gpus | None = None
    cpu_model: record.Line | None = None
    system: record.Line | None = None
    """System and partition on which another tool measured, such as `lumi:gpu`."""


class Source(record.Record, frozen=True, kw_only=True):
    """The publication that a baseline's figures come from."""

    title: record.Name
    url: record.Line | None = None
    published: record.Line | None = None
    note: record.Line | None = None


class PublishedFigure(record.Record, frozen=True, kw_only=True):
    """One published result: times of a fixed amount of training, a throughput, or a metric's value.

    Exactly one of `times_s`, `samples_per_s` and `value` is set. Times may include start-up and
    validation, which a throughput excludes, so neither is computed from the other.
    """

    case: record.Name
    strategy: record.Name
    gpus: record.Gpus
    batch_per_gpu: record.PositiveCount | None = None
    """Samples per GPU and step; None for a metric, which counts no samples."""
    runs: record.PositiveCount = 1
    """Number of repetitions of the measurement."""
    nodes: record.Gpus = 1
    times_s: tuple[record.Seconds, ...] = ()
    """Wall-clock seconds of each repetition; a repetition may be one epoch of a job."""
    timed: Timed | None = None
    """Part of the training that each value in `times_s` covers; None if there are no values."""
    discard_first: record.Count = 0
    """Number of values at the start of `times_s` that `mean_time_s` excludes."""
    samples_per_s: record.SamplesPerSecond | None = None
    value: Annotated[float, Meta(gt=0)] | None = None
    """Reference value of `metric` in another tool's records; its spread between runs is unknown."""
    metric: OpenMetric | None = None
    nights: Mapping[record.Day, Annotated[float, Meta(ge=1e-9, le=1e15)]] = {}
    """Mean result of each night by date, in the figure's unit; empty if the dates are unknown."""
    precision: record.Name | None = None
    """Numerical precision; None if the source does not specify it."""
    data: DataKind | None = None
    """Kind of training data; None if the source does not specify it."""
    note: record.Line | None = None

    def __post_init__(self) -> None:
        times = len(self.times_s)
        if (times > 0) + (self.samples_per_s is not None) + (self.value is not None) != 1:
            raise FieldError("", "expected exactly one of 'times_s', 'samples_per_s' and 'value'")
        if (self.metric is None) != (self.value is None):
            raise FieldError("", "'value' belongs to a 'metric': give both, or neither")
        if (self.metric is None) == (self.batch_per_gpu is None):
            raise FieldError("batch_per_gpu", "is needed, except for a 'metric', which has none")
        if (times > 0) != (self.timed is not None):
            raise FieldError("", "'timed' belongs to 'times_s': give both, or neither")
        if self.discard_first and self.discard_first >= times:
            raise FieldError("discard_first", f"discards all {times} times; keep at least one")
        if self.nodes > self.gpus:
            raise FieldError("nodes", f"{self.gpus} GPUs cannot lie on {self.nodes} nodes")

    @property
    def key(self) -> EntryKey:
        """Key of the figure's row in tables: case, strategy and number of GPUs."""
        return EntryKey(self.case, self.strategy, self.gpus)

    def configuration_on(self, device: str) -> Configuration:
        """Return the figure's configuration; `device` is the type of device, such as `cuda`."""
        return Configuration(
            case=self.case,
            strategy=self.strategy,
            device=device,
            precision=self.precision,
            data=self.data,
            metric=self.metric,
        )

    def speedup_over(self, one: "PublishedFigure") -> float | None:
        """Return the speedup over `one`, the published figure for 1 GPU; None if not comparable.

        Published times are for a fixed amount of training, so the ratio of two times is the speedup
        under both weak and strong scaling.
        """
        if self.samples_per_s is not None and one.samples_per_s is not None:
            return self.samples_per_s / one.samples_per_s
        time_s, one_s = self.mean_time_s, one.mean_time_s
        if time_s is None or one_s is None or self.timed != one.timed:
            return None
        return one_s / time_s

    def cost(self, global_batch: int) -> float | None:
        """Return seconds per step (from a throughput) or the metric's cost; None for `times_s`."""
        if self.metric is not None and self.value is not None:
            return self.metric.cost(self.value, self.gpus)
        return None if self.samples_per_s is None else global_batch / self.samples_per_s

    @property
    def mean_time_s(self) -> float | None:
        """Mean of `times_s` without the first `discard_first` times; None if `times_s` is empty."""
        kept = self.times_s[self.discard_first :]
        return sum(kept) / len(kept) if kept else None


class BaselineChange(record.Record, frozen=True, kw_only=True):
    """One approved change to a baseline: its reason, the replaced runs and the new rows."""

    at: record.Moment
    reason: record.Line
    by: record.Name | None = None
    """Login name of the person who made the change."""
    replaced: tuple[Run, ...] = ()
    """Runs that were replaced, without evidence such as windows and telemetry."""
    added: tuple[record.Line, ...] = ()
    """Names of the rows that had no measured run before the change."""


class Baseline(record.Record, frozen=True, kw_only=True):
    """Contents of a baseline file: measured runs without timing windows, and published figures."""

    name: record.Name
    cluster: record.Name
    hardware: Hardware
    source: Source | None = None
    recorded_at: record.Moment | None = None
    recorded_by: record.Name | None = None
    """Login name of the person who recorded the baseline."""
    gpuscale_version: record.Name | None = None
    """Version of gpuscale used for the measurements; multiple versions are separated by commas."""
    tolerances: Tolerances = Tolerances()
    published: tuple[PublishedFigure, ...] = ()
    environments: Mapping[record.Line, Environment] = {}
    """Machine and software of the measured runs, by allocation."""
    history: tuple[BaselineChange, ...] = ()
    """Changes since the baseline was recorded, oldest first."""
    probes: tuple[Probe, ...] = ()
    runs: tuple[Run, ...] = ()
    """Measured runs, each with the name of its allocation."""

    def __post_init__(self) -> None:
        if self.published and self.source is None:
            raise FieldError("", "published figures need a 'source'; name where they come from")
        per_node = self.hardware.gpus_per_node
        seen: set[EntryKey] = set()
        for position, figure in enumerate(self.published):
            place = f"published[{position}]"
            if per_node is not None and figure.gpus > figure.nodes * per_node:
                nodes = counted(figure.nodes, "node")
                problem = f"{figure.gpus} GPUs do not fit on {nodes} of {per_node}"
                raise FieldError(f"{place}.nodes", problem)
            if figure.key in seen:
                label = figure.key.label_on(self.hardware.device)
                raise FieldError(place, f"{label} occurs twice; keep one, or rename a case")
            seen.add(figure.key)
        workloads: dict[object, object] = {}
        for position, run in enumerate(self.runs):
            place = f"runs[{position}]"
            if not run.is_valid or run.allocation is None:
                raise FieldError(place, "a baseline has only valid runs with an 'allocation'")
            if self.hardware.device not in (run.configuration.device, UNRECORDED):
                problem = f"hardware says '{self.hardware.device}'; correct one of the two"
                raise FieldError(f"{place}.configuration.device", problem)
            workload = (run.batch_per_gpu, run.sample_shape)
            if workloads.setdefault((run.configuration, run.gpus), workload) != workload:
                problem = f"{run.label} has another batch or sample shape in an earlier run"
                raise FieldError(place, f"{problem}; make one baseline for each")
