"""Reference results of one cluster: measured runs, or published numbers with their source."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from gpuscale.base.units import counted
from gpuscale.records.configuration import DataKind, EntryKey
from gpuscale.records.environment import Environment
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
    """The machine that a baseline speaks of; what is None was not recorded."""

    device: Name
    gpu_name: Name | None = None
    """As published or as CUDA reports it; matched by the model in it (`V100`, `A100`)."""
    gpus_per_node: Gpus | None = None
    cpu_model: Line | None = None

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.gpu_name is not None:
            raise ValueError(
                "gpu_name: a machine of device 'cpu' has no GPU; remove it or say 'cuda'"
            )


class Source(Record, frozen=True, kw_only=True):
    """Where published figures come from."""

    title: Name
    url: Line | None = None
    published: Line | None = None
    note: Line | None = None


class PublishedFigure(Record, frozen=True, kw_only=True):
    """One published result: either times for a fixed amount of training, or a throughput.

    A wall clock holds start-up and validation, a throughput does not, so the two are
    separate fields and exactly one of them is given.
    """

    case: Name
    strategy: Name
    gpus: Gpus
    batch_per_gpu: PositiveCount
    runs: PositiveCount
    """Repetitions behind the figure."""
    nodes: Gpus = 1
    times_s: tuple[Seconds, ...] = ()
    """Wall-clock seconds; several are repetitions, such as the epochs of one job."""
    timed: Timed | None = None
    """The span of `times_s`."""
    discard_first: Count = 0
    """The number of first `times_s` that the source itself leaves out."""
    samples_per_s: SamplesPerSecond | None = None
    nights: Mapping[Day, Annotated[float, msgspec.Meta(ge=1e-9, le=1e15)]] = msgspec.field(
        default_factory=dict
    )
    """The mean of each night, in the unit of the figure; empty where nights are not told."""
    precision: Name | None = None
    """As the source tells it; None where it does not."""
    data: DataKind | None = None
    """The same, of the data."""
    note: Line | None = None

    def __post_init__(self) -> None:
        times = len(self.times_s)
        if (times > 0) == (self.samples_per_s is not None):
            raise ValueError("expected exactly one of 'times_s' and 'samples_per_s'")
        if (times > 0) != (self.timed is not None):
            problem = "'timed' says what 'times_s' spans: give it with times, and only with them"
            raise ValueError(problem)
        if self.discard_first and self.discard_first >= times:
            raise ValueError(
                f"discard_first: {self.discard_first} of {times} times are discarded; at least one "
                "must be left"
            )
        if self.nodes > self.gpus:
            raise ValueError(f"nodes: {self.gpus} GPUs cannot lie on {self.nodes} nodes")

    @property
    def key(self) -> EntryKey:
        """The table row that this figure belongs to."""
        return EntryKey(self.case, self.strategy, self.gpus)

    @property
    def mean_time_s(self) -> float | None:
        """Mean of the times that count, in seconds; None for a throughput figure."""
        counted = self.times_s[self.discard_first :]
        return sum(counted) / len(counted) if counted else None


class BaselineChange(Record, frozen=True, kw_only=True):
    """One approved change of a baseline: what was there before, and why it went."""

    at: Moment
    reason: Line
    by: Name | None = None
    """Login name."""
    replaced: tuple[Run, ...] = ()
    """The runs that were there, without their evidence."""
    added: tuple[Line, ...] = ()
    """Rows that had no measured run before, in words."""
    environments: Mapping[Line, Environment] = msgspec.field(default_factory=dict)
    """Of the replaced runs, by allocation, as far as no other run is of it."""


class Baseline(Record, frozen=True, kw_only=True):
    """A baseline file in memory: runs without their windows, and figures that were published."""

    name: Name
    cluster: Name
    hardware: Hardware
    source: Source | None = None
    recorded_at: Moment | None = None
    recorded_by: Name | None = None
    """Login name."""
    gpuscale_version: Name | None = None
    """The gpuscale that measured; several where the results came from several."""
    expires_on: Day | None = None
    """The last day on which it is valid, as `2027-05-01`; None is never."""
    tolerances: Tolerances = Tolerances()
    published: tuple[PublishedFigure, ...] = ()
    environments: Mapping[Line, Environment] = msgspec.field(default_factory=dict)
    """Machine and software of the runs, by allocation."""
    history: tuple[BaselineChange, ...] = ()
    """Its changes since it was recorded, the oldest first."""
    runs: tuple[Run, ...] = ()
    """The measured runs, each with its allocation."""

    def __post_init__(self) -> None:
        if problem := next(_problems(self), None):
            raise ValueError(problem)


def _problems(baseline: Baseline) -> Iterator[str]:
    if baseline.published and baseline.source is None:
        yield "published figures need a 'source'; name where they come from"
    per_node = baseline.hardware.gpus_per_node
    seen: set[EntryKey] = set()
    for position, figure in enumerate(baseline.published):
        place = f"published[{position}]"
        if per_node is not None and figure.gpus > figure.nodes * per_node:
            nodes = counted(figure.nodes, "node")
            yield f"{place}.nodes: {figure.gpus} GPUs do not fit on {nodes} of {per_node}"
        if figure.key in seen:
            yield f"{place}: {figure.key.label} stands twice; keep one, or name the cases apart"
        seen.add(figure.key)
    workloads: dict[object, object] = {}
    for position, run in enumerate(baseline.runs):
        place = f"runs[{position}]"
        if not run.is_valid or run.allocation is None:
            yield f"{place}: a baseline keeps valid runs with their 'allocation' only"
        if run.configuration.device != baseline.hardware.device:
            yield (
                f"{place}.configuration.device: measured on '{run.configuration.device}', but "
                f"hardware says '{baseline.hardware.device}'; correct one of the two"
            )
        workload = (run.batch_per_gpu, run.sample_shape)
        if workloads.setdefault((run.configuration, run.gpus), workload) != workload:
            yield (
                f"{place}: {run.key.label} has another batch or sample shape before; make one "
                "baseline for each"
            )
