"""The metrics judged beside step time and speedup: exposed communication, memory, energy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.compare.matching import Entry, Row, Side
from gpuscale.compare.quantity import Quantity, relative_rise, rise_in_points
from gpuscale.compare.spread import RunSample, SideSample, gain_of, moderated_samples
from gpuscale.records import METRICS, EntryKey, Estimate, MetricSpec, Tolerances
from gpuscale.statistics.estimates import Difference, difference, exponential, log_sample

_ByAllocation = Mapping[str, tuple[float, ...]]


JUDGED_METRICS = tuple(metric for metric in METRICS if metric.limits is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPairing:
    """Both sides of one metric of one row."""

    key: EntryKey
    kind: MetricSpec
    baseline: RunSample
    current: RunSample
    unit_value: float
    """The value of one point, in the metric's unit; 1 where values are logarithms."""

    def gain(self, tolerances: Tolerances) -> Difference:
        """The change, above 0 for the better."""
        limits = tolerances.limits(self.key, self.kind.name)
        return gain_of(
            SideSample(time=self.baseline),
            SideSample(time=self.current),
            deviation=limits.allocation_deviation,
        )

    @property
    def loss_of(self) -> Callable[[float], float]:
        """From a gain to the loss that margins are about."""
        return rise_in_points if self.kind.in_points else relative_rise

    def estimate(self, end: RunSample) -> Estimate:
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


def pair_metrics(rows: Sequence[Row], before: Side, after: Side) -> list[tuple[MetricPairing, ...]]:
    """The metrics of each row that both sides measured.

    As with step times, every sample's variance leans on all others of the same metric.
    """
    found: list[list[MetricPairing]] = [[] for _ in rows]
    points_s = {key: _point_s(entry) for key, entry in before.by_point.items()}
    for kind in JUDGED_METRICS:
        then, now = (
            {
                key: values
                for key, entry in side.by_point.items()
                if key in points_s and (values := _values(kind, entry, points_s[key]))
            }
            for side in (before, after)
        )
        then_ends, now_ends = moderated_samples(
            then, {key: values for key, values in now.items() if key in then}
        )
        for row, pairings in zip(rows, found, strict=True):
            key = None if row.before is None else row.before.point.point_key
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


def _point_s(entry: Entry) -> float:
    """The baseline's step time, which exposed communication is a part of."""
    logs = [log for logs in entry.logs.values() for log in logs]
    return exponential(math.fsum(logs) / len(logs))


def _values(kind: MetricSpec, entry: Entry, point_s: float) -> _ByAllocation:
    found: dict[str, tuple[float, ...]] = {}
    for night, runs in entry.runs.items():
        known = (run.measured[kind.name] for run in runs if kind.name in run.measured)
        values = tuple(
            value / point_s if kind.in_points else math.log(value)
            for value in known
            # A counter that stands at 0 measured nothing.
            if value > 0 or kind.in_points
        )
        if values:
            found[night] = values
    return found
