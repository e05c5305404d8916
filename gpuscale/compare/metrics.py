"""What is judged beside step time and speedup: exposed communication, memory, energy."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.compare.levels import End, Ends, gain_of, moderated_ends
from gpuscale.compare.matching import Current, Row
from gpuscale.compare.pairing import entry_point
from gpuscale.compare.quantity import Quantity, relative_rise, rise_in_points
from gpuscale.evidence import energy_per_sample_j, peak_memory_bytes
from gpuscale.records import (
    Baseline,
    EntryKey,
    Estimate,
    Finding,
    JudgedMetric,
    MeasuredEntry,
    Metric,
    Run,
    RunEvidence,
    Tolerances,
)
from gpuscale.statistics import Difference, difference, exponential, log_sample

_ByAllocation = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricKind:
    """One metric: where its values come from, and how a change of it is read."""

    metric: Metric
    limits_name: JudgedMetric
    finding: Finding
    unit: str
    then: Callable[[RunEvidence], float | None]
    now: Callable[[Run], float | None]
    in_points: bool = False
    """Whether it is judged as a part of the baseline's step time, since it may be 0."""

    @property
    def loss_of(self) -> Callable[[float], float]:
        """From a gain to the loss that margins are about."""
        return rise_in_points if self.in_points else relative_rise


KINDS = (
    MetricKind(
        metric=Metric.EXPOSED_COMMUNICATION,
        limits_name="exposed_communication",
        finding=Finding.MORE_EXPOSED_COMMUNICATION,
        unit="s",
        then=lambda evidence: evidence.exposed_communication_s,
        now=lambda run: run.exposed_communication_s,
        in_points=True,
    ),
    MetricKind(
        metric=Metric.PEAK_MEMORY,
        limits_name="peak_memory",
        finding=Finding.MORE_MEMORY,
        unit="bytes",
        then=lambda evidence: evidence.peak_memory_bytes,
        now=peak_memory_bytes,
    ),
    MetricKind(
        metric=Metric.ENERGY_PER_SAMPLE,
        limits_name="energy_per_sample",
        finding=Finding.MORE_ENERGY,
        unit="J",
        then=lambda evidence: evidence.energy_per_sample_j,
        now=energy_per_sample_j,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPairing:
    """Both sides of one metric of one row."""

    key: EntryKey
    kind: MetricKind
    baseline: End
    current: End
    unit_value: float
    """What one point stands for, in the metric's unit; 1 where values are logarithms."""

    def gain(self, tolerances: Tolerances) -> Difference:
        """The change, above 0 for the better."""
        limits = tolerances.limits(self.key, self.kind.limits_name)
        return gain_of(
            Ends(time=self.baseline),
            Ends(time=self.current),
            deviation=limits.allocation_deviation,
        )

    def estimate(self, end: End) -> Estimate:
        """The metric on one side, in its unit, with the interval that its own runs give."""
        sample = log_sample([value for values in end.values.values() for value in values])
        mean = difference(sample.mean, [sample.term()])
        if not self.kind.in_points:
            return mean.exponential()
        low, high = mean.interval() or (None, None)
        return Estimate(value=mean.value, low=low, high=high).scaled(self.unit_value)

    def change(self, quantity: Quantity) -> Estimate:
        """The change as a fraction, positive for the worse."""
        gain = quantity.gain
        low, high = gain.interval() or (None, None)
        return Estimate(
            value=quantity.loss,
            low=None if high is None else quantity.loss_of(high),
            high=None if low is None else quantity.loss_of(low),
        )


def pair_metrics(
    rows: Sequence[Row], baseline: Baseline, currents: Sequence[Current]
) -> list[tuple[MetricPairing, ...]]:
    """The metrics of each row that both sides measured.

    As with step times, every sample's variance leans on all others of the same metric.
    """
    found: list[list[MetricPairing]] = [[] for _ in rows]
    points_s = {entry_point(entry): _point_s(entry) for entry in baseline.measured}
    for kind in KINDS:
        before = {
            entry_point(entry): values
            for entry in baseline.measured
            if (values := _values_then(kind, entry, points_s[entry_point(entry)]))
        }
        now = {
            current.point.point_key: values
            for current in currents
            if current.point.point_key in before
            and (values := _values_now(kind, current, points_s[current.point.point_key]))
        }
        then_ends, now_ends = moderated_ends(before, now)
        for row, pairings in zip(rows, found, strict=True):
            key = None if row.entry is None else entry_point(row.entry)
            if key in now_ends:
                pairings.append(
                    MetricPairing(
                        key=row.key,
                        kind=kind,
                        baseline=then_ends[key],
                        current=now_ends[key],
                        unit_value=points_s[key] if kind.in_points else 1.0,
                    )
                )
    return [tuple(pairings) for pairings in found]


def _point_s(entry: MeasuredEntry) -> float:
    """The baseline's step time, which exposed communication is a part of."""
    logs = [math.log(run.step_time_s) for run in entry.runs]
    return exponential(math.fsum(logs) / len(logs))


def _values_then(kind: MetricKind, entry: MeasuredEntry, point_s: float) -> _ByAllocation:
    return _by_allocation(
        kind,
        point_s,
        (
            (run.allocation, kind.then(run.evidence))
            for run in entry.runs
            if run.evidence is not None
        ),
    )


def _values_now(kind: MetricKind, current: Current, point_s: float) -> _ByAllocation:
    return _by_allocation(
        kind,
        point_s,
        ((night, kind.now(run)) for night, runs in current.runs.items() for run in runs),
    )


def _by_allocation(
    kind: MetricKind, point_s: float, values: Iterable[tuple[str, float | None]]
) -> _ByAllocation:
    found: dict[str, tuple[float, ...]] = {}
    for night, value in values:
        # A counter that stands at 0 measured nothing.
        if value is None or (value <= 0 and not kind.in_points):
            continue
        scaled = value / point_s if kind.in_points else math.log(value)
        found[night] = (*found.get(night, ()), scaled)
    return found
