"""Both sides of each row as samples: the changes of T(n), S(n), T(1) and of the metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.decision import Quantity, loss_in_points, loss_of_throughput, relative_rise
from gpuscale.compare.matching import Entry, Row, Side
from gpuscale.compare.spread import (
    RunSample,
    SideSample,
    Spread,
    gain_of,
    largest_spread,
    moderated_samples,
)
from gpuscale.records import (
    METRICS_BY_NAME,
    EntryKey,
    Estimate,
    MetricSpec,
    ReasonCode,
    Statement,
    Tolerances,
)
from gpuscale.scaling import PointKey
from gpuscale.statistics.estimates import (
    FURTHER_RUNS,
    Difference,
    difference,
    exponential,
    log_sample,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The changes of one row, above 0 for the better."""

    time: Difference
    """Of T(n), or of T(1) on 1 GPU."""
    speedup: Difference | None = None
    reference: Difference | None = None
    """Of T(1), for a row on more GPUs; given whenever `speedup` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Both sides of one row, and the runs on 1 GPU where both sides have them."""

    key: EntryKey
    baseline: RunSample
    current: RunSample
    references: tuple[RunSample, RunSample] | None = None
    """The baseline's and the current runs on 1 GPU; None on 1 GPU itself."""
    without_speedup: Statement | None = None
    """Why S(n) cannot be judged; None where it can, and on 1 GPU."""

    @property
    def reference_row(self) -> EntryKey:
        """The row of the runs on 1 GPU."""
        return self.key._replace(gpus=1)

    def gains(self, tolerances: Tolerances, *, further_runs: int = 0) -> Gains:
        """The changes, or what they would be after further runs that leave the means alone."""
        of_time = tolerances.limits(self.key, "throughput").allocation_deviation
        current = self.current.with_further_runs(further_runs)
        time = gain_of(SideSample(time=self.baseline), SideSample(time=current), deviation=of_time)
        if self.references is None:
            return Gains(time=time)
        before, now = self.references[0], self.references[1].with_further_runs(further_runs)
        of_reference = tolerances.limits(self.reference_row, "throughput").allocation_deviation
        return Gains(
            time=time,
            speedup=gain_of(
                SideSample(time=self.baseline, reference=before),
                SideSample(time=current, reference=now),
                deviation=tolerances.limits(self.key, "speedup").allocation_deviation,
                deviation_apart=max(of_time, of_reference),
            ),
            reference=gain_of(
                SideSample(time=before), SideSample(time=now), deviation=of_reference
            ),
        )

    def lasting_spread(self, tolerances: Tolerances, *, of_speedup: bool) -> Spread:
        """The spread that makes T(n), or S(n), uncertain however many runs are added."""
        most = FURTHER_RUNS[-1]
        gains = self.gains(tolerances, further_runs=most)
        current, before, now = self.current.with_further_runs(most), None, None
        if self.references is not None and of_speedup:
            before, now = self.references[0], self.references[1].with_further_runs(most)
        return largest_spread(
            SideSample(time=self.baseline, reference=before),
            SideSample(time=current, reference=now),
            gains.speedup if of_speedup and gains.speedup is not None else gains.time,
        )


def pair_rows(rows: Sequence[Row], before: Side, after: Side) -> list[Pairing]:
    """The pairing of each row, all of which have valid runs on both sides.

    Every sample is moderated by all the others of the comparison, also by those of rows that
    are not judged: how much runs differ is told by all of them.
    """
    configurations = {entry.point.configuration for entry in before.entries}
    then, now = moderated_samples(
        {key: entry.logs for key, entry in before.by_point.items()},
        {
            key: entry.logs
            for key, entry in after.by_point.items()
            if key.configuration in configurations
        },
    )
    return [_pairing(row, before, after, then, now) for row in rows]


def _pairing(
    row: Row,
    before: Side,
    after: Side,
    then: Mapping[PointKey, RunSample],
    now: Mapping[PointKey, RunSample],
) -> Pairing:
    if row.before is None or row.after is None:
        raise ValueError(f"{row.key.label}: a row with one side cannot be paired")
    keys = row.before.point.point_key, row.after.point.point_key
    alone = Pairing(key=row.key, baseline=then[keys[0]], current=now[keys[1]])
    if row.key.gpus == 1:
        return alone
    reference, reference_now = before.references.of(keys[0]), after.references.of(keys[1])
    why = _why_without_speedup(reference, reference_now)
    if reference is None or reference_now is None or why:
        return replace(alone, without_speedup=why)
    return replace(alone, references=(then[reference], now[reference_now]))


def _why_without_speedup(before: PointKey | None, now: PointKey | None) -> Statement | None:
    if before is None and now is None:
        return Statement.of(ReasonCode.NEITHER_ON_1_GPU)
    if before is None:
        return Statement.of(ReasonCode.BASELINE_NOT_ON_1_GPU)
    if now is None:
        return Statement.of(ReasonCode.RESULTS_NOT_ON_1_GPU)
    if before.batch_per_gpu != now.batch_per_gpu:
        batches = {"before": before.batch_per_gpu, "now": now.batch_per_gpu}
        return Statement.of(ReasonCode.OTHER_BATCH_ON_1_GPU, **batches)
    return None


_ByAllocation = Mapping[str, tuple[float, ...]]


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
        gain = gain_of(
            SideSample(time=self.baseline),
            SideSample(time=self.current),
            deviation=limits.allocation_deviation,
        )
        return replace(gain, value=-gain.value) if self.kind.more_is_better else gain

    @property
    def loss_of(self) -> Callable[[float], float]:
        """From a gain to the loss that margins are about."""
        if self.kind.in_points:
            return loss_in_points
        return loss_of_throughput if self.kind.more_is_better else relative_rise

    def estimate(self, end: RunSample) -> Estimate:
        """The metric on one side, in its unit, with the interval that its own runs give."""
        sample = log_sample([value for values in end.values.values() for value in values])
        mean = difference(sample.mean, [sample.term()])
        if not self.kind.in_points:
            return mean.exponential()
        low, high = mean.interval() or (None, None)
        return Estimate(value=mean.value, low=low, high=high).scaled(self.unit_value)

    def change(self, quantity: Quantity) -> Estimate:
        """The change as a fraction, positive where there is more now."""
        sign = -1 if self.kind.more_is_better else 1
        interval = quantity.gain.interval() or (None, None)
        ends = [None if end is None else sign * quantity.loss_of(end) for end in interval]
        low, high = ends[::sign][::-1]
        return Estimate(value=sign * quantity.loss, low=low, high=high)


def pair_metrics(rows: Sequence[Row], before: Side, after: Side) -> list[tuple[MetricPairing, ...]]:
    """The metrics of each row that both sides measured.

    As with step times, every sample's variance leans on all others of the same metric.
    """
    found: list[list[MetricPairing]] = [[] for _ in rows]
    points_s = {key: _point_s(entry) for key, entry in before.by_point.items()}
    for kind in (metric for metric in METRICS_BY_NAME.values() if metric.limits):
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
