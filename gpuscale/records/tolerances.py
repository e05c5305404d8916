"""The limits of judgement, and where a site sets its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gpuscale.records.configuration import EntryKey, Strategy

JudgedMetric = Literal[
    "throughput", "speedup", "exposed_communication", "peak_memory", "energy_per_sample"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one metric of one row, as fractions.

    Of exposed communication they are fractions of the baseline's step time, of the others
    fractions of the metric itself.
    """

    margin: float
    """A change to the worse up to this is never called a regression."""
    ok_bound: float
    """ok means that the 95% upper bound of the change to the worse lies below this."""
    allocation_deviation: float
    """Declared standard deviation between allocations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceOverride:
    """Other limits for some rows and one metric; None is any, or the limit that holds without.

    Without a metric it holds for throughput and speedup.
    """

    case: str | None = None
    strategy: Strategy | None = None
    gpus: int | None = None
    metric: JudgedMetric | None = None
    margin: float | None = None
    ok_bound: float | None = None
    allocation_deviation: float | None = None

    @property
    def conditions(self) -> tuple[object, ...]:
        """What a row must be for the override to hold, in order of weight."""
        return (self.case, self.strategy, self.gpus, self.metric)

    @property
    def specificity(self) -> tuple[int, ...]:
        """Larger wins: more conditions first, then those that come first in `conditions`."""
        given = [int(condition is not None) for condition in self.conditions]
        return (sum(given), *given)

    def fits(self, key: EntryKey) -> bool:
        """Whether the row is one of those meant, whatever the metric."""
        wanted = (self.case, self.strategy, self.gpus)
        return all(want in (None, has) for want, has in zip(wanted, key, strict=True))

    def fits_metric(self, metric: JudgedMetric) -> bool:
        """Whether the metric is meant."""
        return metric == self.metric or (
            self.metric is None and metric in ("throughput", "speedup")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """The limits of judgement; a site sets its own in its baseline file."""

    margin: float = 0.02
    """A loss of throughput or speedup up to this fraction is never called a regression."""
    ok_bound: float = 0.05
    """ok means that the 95% upper bound of the loss lies below this fraction."""
    allocation_deviation_time: float = 0.01
    """Declared relative standard deviation of T between allocations."""
    allocation_deviation_speedup: float = 0.005
    """The same for S and E, whose two ends were measured on the same nodes."""
    published_within_node: float = 0.10
    published_across_nodes: float = 0.20
    overrides: tuple[ToleranceOverride, ...] = ()
    """Other limits for some rows; the most specific one that gives a limit wins."""

    def limits(self, key: EntryKey, metric: JudgedMetric) -> Limits:
        """The limits of one metric of one row, with all overrides that fit."""
        given = self._defaults(metric)
        return Limits(
            margin=self._overridden(key, metric, "margin", given.margin),
            ok_bound=self._overridden(key, metric, "ok_bound", given.ok_bound),
            allocation_deviation=self._overridden(
                key, metric, "allocation_deviation", given.allocation_deviation
            ),
        )

    def published_margin(self, key: EntryKey, *, nodes: int) -> float:
        """How far the row may lie below a published figure."""
        default = self.published_within_node if nodes == 1 else self.published_across_nodes
        return self._overridden(
            key, "throughput" if key.gpus == 1 else "speedup", "margin", default
        )

    def _defaults(self, metric: JudgedMetric) -> Limits:
        if metric in METRIC_LIMITS:
            return METRIC_LIMITS[metric]
        return Limits(
            margin=self.margin,
            ok_bound=self.ok_bound,
            allocation_deviation=self.allocation_deviation_time
            if metric == "throughput"
            else self.allocation_deviation_speedup,
        )

    def _overridden(self, key: EntryKey, metric: JudgedMetric, name: str, default: float) -> float:
        fitting = [
            each
            for each in self.overrides
            if each.fits(key) and each.fits_metric(metric) and getattr(each, name) is not None
        ]
        if not fitting:
            return default
        value: float = getattr(max(fitting, key=lambda each: each.specificity), name)
        return value


METRIC_LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        # Both halves of a run share its nodes, as both ends of a speedup do.
        "exposed_communication": Limits(margin=0.02, ok_bound=0.05, allocation_deviation=0.005),
        # A library's choice of algorithm moves it a little from one start to another.
        "peak_memory": Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.005),
        # GPUs of one model draw several percent more or less for the same work.
        "energy_per_sample": Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.02),
    }
)
"""What holds for the metrics beside throughput and speedup unless a site overrides it."""
