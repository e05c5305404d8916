"""Estimates with 95% confidence intervals, and points of scaling curves."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from gpuscale.records.baseline import PublishedFigure
from gpuscale.records.configuration import Configuration, EntryKey, RowMixin
from gpuscale.records.request import RunRequest
from gpuscale.records.run import Run


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A value and its two-sided 95% interval; the bounds are None if the data give no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """True if both bounds of the interval are known; a single run cannot give them."""
        return self.low is not None and self.high is not None

    def mapped(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate with an increasing function applied to the value and both bounds."""
        low = None if self.low is None else function(self.low)
        high = None if self.high is None else function(self.high)
        return Estimate(value=function(self.value), low=low, high=high)

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate and its bounds multiplied by a positive factor."""
        return self.mapped(lambda value: value * factor)

    def inverse(self, numerator: float) -> "Estimate":
        """Return `numerator` divided by this estimate, whose value and bounds must be positive."""
        inverted = self.mapped(lambda value: numerator / value)
        return Estimate(value=inverted.value, low=inverted.high, high=inverted.low)


class PointKey(NamedTuple):
    """Key of a point on a scaling curve; all repetitions of a run have the same key."""

    configuration: Configuration
    gpus: int
    batch_per_gpu: int | None
    """Samples per GPU and step; None if a command failed before it printed the batch size."""
    sample_shape: tuple[int, ...] | None

    @classmethod
    def of(cls, run: Run | RunRequest) -> "PointKey":
        """Return the key of the point that a completed or requested run belongs to."""
        return cls(run.configuration, run.gpus, run.batch_per_gpu, run.sample_shape)

    @property
    def row(self) -> EntryKey:
        """Key of the row in tables that the point belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def global_batch(self) -> int:
        """Samples per step over all GPUs; `OpenMetric.work` if a metric replaces the step time."""
        if (metric := self.configuration.metric) is not None:
            return metric.work(self.gpus)
        assert self.batch_per_gpu is not None, "a valid run knows its batch"
        return self.gpus * self.batch_per_gpu


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates of speed and scaling that a `ScalingPoint` inherits; unknown ones are None."""

    value: Estimate | None = None
    """Value of the metric that is judged instead of the step time, in the metric's unit."""
    unit: str = ""
    step_time_s: Estimate | None = None
    samples_per_s: Estimate | None = None
    """Throughput over all GPUs."""
    speedup: Estimate | None = None
    """Throughput relative to 1 GPU with the same configuration; exactly 1 on 1 GPU."""
    efficiency: Estimate | None = None


class ScalingPoint(RowMixin, Scaling, frozen=True, kw_only=True):
    """A measured or published point of a scaling curve; a field is None if unknown."""

    kind: Literal["measured", "published"] = "measured"
    configuration: Configuration
    gpus: int
    batch_per_gpu: int | None
    sample_shape: tuple[int, ...] | None = None
    nodes: int | None = None
    """Number of nodes that every valid run used; None if unknown or different between runs."""
    valid_runs: int = 0
    """Number of runs behind the estimates; for a published figure, as stated by the source."""
    failed_runs: int = 0
    epoch_s: float | None = None
    """Seconds to process all training samples of the case at this throughput."""
    samples_per_j: Estimate | None = None
    """Samples per joule used by all devices; None if a device has no energy counter."""
    gpu_utilization: float | None = None
    """Share of time with a kernel running, from 0 to 1; mean over devices and runs."""
    peak_memory_bytes: int | None = None
    """Largest peak of allocated CUDA memory on any rank; None on CPU."""
    peak_host_memory_bytes: int | None = None
    figure: PublishedFigure | None = None

    @property
    def epoch_time_s(self) -> Estimate | None:
        """`epoch_s` with bounds scaled from those of `step_time_s`; None if either is None."""
        if self.step_time_s is None or self.epoch_s is None:
            return None
        return self.step_time_s.scaled(self.epoch_s / self.step_time_s.value)
