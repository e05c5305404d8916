"""Both sides of each row as samples, and the changes of T(n), S(n) and T(1) between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.matching import Row, Side
from gpuscale.compare.spread import (
    RunSample,
    SideSample,
    Spread,
    gain_of,
    largest_spread,
    moderated_samples,
)
from gpuscale.records import EntryKey, ReasonCode, Statement, Tolerances
from gpuscale.scaling import PointKey
from gpuscale.statistics.estimates import FURTHER_RUNS, Difference


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
