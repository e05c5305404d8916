"""Estimates with intervals, and the points of a scaling curve that they describe."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpuscale.records.baseline import PublishedFigure
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.request import RunRequest
from gpuscale.records.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its two-sided 95% interval; the bounds are None if the data support none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """True if the data carry an interval, which a single run does not."""
        return self.low is not None and self.high is not None

    def scaled(self, factor: float) -> "Estimate":
        """The estimate of `factor` times the quantity (`factor` positive)."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Estimate(value=self.value * factor, low=low, high=high)

    def inverse(self, numerator: float) -> "Estimate":
        """The estimate of `numerator` divided by the (positive) quantity."""
        high, low = (
            None if bound is None else numerator / bound for bound in (self.low, self.high)
        )
        return Estimate(value=numerator / self.value, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A count out of a total, with the rate and its 95% interval."""

    count: int
    of: int
    rate: Estimate


class PointKey(NamedTuple):
    """The properties that all repetitions of a run share."""

    configuration: Configuration
    gpus: int
    batch_per_gpu: int | None
    """None for commands that failed before a line reported it."""
    sample_shape: tuple[int, ...] | None

    @classmethod
    def of(cls, run: Run | RunRequest) -> "PointKey":
        """The point that a run belongs to, or will."""
        return cls(run.configuration, run.gpus, run.batch_per_gpu, run.sample_shape)

    @property
    def global_batch(self) -> int:
        """Samples of one step over all GPUs, for a point that has a valid run."""
        assert self.batch_per_gpu is not None, "a valid run knows its batch"
        return self.gpus * self.batch_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The numbers of a scaling curve at one point; a field is None if unknown."""

    step_time_s: Estimate | None = None
    samples_per_s: Estimate | None = None
    """Throughput over all GPUs."""
    speedup: Estimate | None = None
    """Throughput over that of 1 GPU with the same configuration; exactly 1 on 1 GPU."""
    efficiency: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint(Scaling):
    """A measured, published or projected point; a field is None if unknown."""

    kind: Literal["measured", "published", "projected"] = "measured"
    configuration: Configuration
    gpus: int
    batch_per_gpu: int | None
    sample_shape: tuple[int, ...] | None = None
    nodes: int | None = None
    """Nodes of each valid run; None also if the runs used different numbers."""
    valid_runs: int = 0
    """Runs behind the numbers, as a publication counts them too."""
    failed_runs: int = 0
    epoch_s: float | None = None
    """Seconds for all training samples of the case at this throughput."""
    samples_per_j: Estimate | None = None
    """Per joule of all devices; None if a device has no energy counter."""
    gpu_utilization: float | None = None
    """Share of time with a kernel running, 0 to 1; mean over the devices and the runs."""
    peak_memory_bytes: int | None = None
    """Largest peak of the CUDA allocator on any rank; None on CPU."""
    peak_host_memory_bytes: int | None = None
    """Largest peak resident set of any rank."""
    figure: PublishedFigure | None = None
    """The published figure that the point comes from."""

    @property
    def key(self) -> EntryKey:
        """The table row that the point belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def point_key(self) -> PointKey:
        """The properties that its runs share."""
        return PointKey(self.configuration, self.gpus, self.batch_per_gpu, self.sample_shape)
