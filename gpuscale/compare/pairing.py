"""Both sides of each row as samples, and the changes of T(n), S(n) and T(1) between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.levels import End, Ends, Spread, gain_of, largest_spread, moderated_ends
from gpuscale.compare.matching import Current, Row
from gpuscale.records import Baseline, EntryKey, MeasuredEntry, Tolerances
from gpuscale.scaling import PointKey, reference_key
from gpuscale.statistics import FURTHER_RUNS, Difference


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
    baseline: End
    current: End
    references: tuple[End, End] | None = None
    """The baseline's and the current runs on 1 GPU; None on 1 GPU itself."""
    without_speedup: str = ""
    """Why S(n) cannot be judged; empty where it can, and on 1 GPU."""

    @property
    def reference_row(self) -> EntryKey:
        """The row of the runs on 1 GPU."""
        return self.key._replace(gpus=1)

    def gains(self, tolerances: Tolerances, *, further_runs: int = 0) -> Gains:
        """The changes, or what they would be after further runs that leave the means alone."""
        of_time = tolerances.limits(self.key, "throughput").allocation_deviation
        current = self.current.with_further_runs(further_runs)
        time = gain_of(Ends(time=self.baseline), Ends(time=current), deviation=of_time)
        if self.references is None:
            return Gains(time=time)
        before, now = self.references[0], self.references[1].with_further_runs(further_runs)
        of_reference = tolerances.limits(self.reference_row, "throughput").allocation_deviation
        return Gains(
            time=time,
            speedup=gain_of(
                Ends(time=self.baseline, reference=before),
                Ends(time=current, reference=now),
                deviation=tolerances.limits(self.key, "speedup").allocation_deviation,
                deviation_apart=max(of_time, of_reference),
            ),
            reference=gain_of(Ends(time=before), Ends(time=now), deviation=of_reference),
        )

    def lasting_spread(self, tolerances: Tolerances, *, of_speedup: bool) -> Spread:
        """What makes T(n), or S(n), most uncertain however many runs are added."""
        most = FURTHER_RUNS[-1]
        gains = self.gains(tolerances, further_runs=most)
        current, before, now = self.current.with_further_runs(most), None, None
        if self.references is not None and of_speedup:
            before, now = self.references[0], self.references[1].with_further_runs(most)
        return largest_spread(
            Ends(time=self.baseline, reference=before),
            Ends(time=current, reference=now),
            gains.speedup if of_speedup and gains.speedup is not None else gains.time,
        )


def entry_point(entry: MeasuredEntry) -> PointKey:
    """The point of the scaling curve that a baseline entry holds runs of."""
    return PointKey(entry.configuration, entry.gpus, entry.batch_per_gpu, entry.sample_shape)


def entry_logs(entry: MeasuredEntry) -> Mapping[str, tuple[float, ...]]:
    """Logarithms of an entry's step times, by allocation."""
    logs: dict[str, tuple[float, ...]] = {}
    for run in entry.runs:
        logs[run.allocation] = (*logs.get(run.allocation, ()), math.log(run.step_time_s))
    return logs


def pair_rows(
    rows: Sequence[Row], baseline: Baseline, currents: Sequence[Current]
) -> list[Pairing]:
    """The pairing of each row, all of which have an entry and valid current runs.

    Every sample is moderated by all the others of the comparison, also by those of rows that
    are not judged: how much runs differ is told by all of them.
    """
    before = {entry_point(entry): entry_logs(entry) for entry in baseline.measured}
    configurations = {key.configuration for key in before}
    now = {
        current.point.point_key: current.logs
        for current in currents
        if current.logs and current.point.configuration in configurations
    }
    baseline_ends, current_ends = moderated_ends(before, now)
    return [_pairing(row, baseline_ends, current_ends) for row in rows]


def _pairing(
    row: Row, baseline_ends: Mapping[PointKey, End], current_ends: Mapping[PointKey, End]
) -> Pairing:
    if row.entry is None:
        raise ValueError(f"{row.key.label}: a row without a measured entry cannot be paired")
    key = entry_point(row.entry)
    alone = Pairing(key=row.key, baseline=baseline_ends[key], current=current_ends[key])
    if key.gpus == 1:
        return alone
    before, now = reference_key(key, baseline_ends), reference_key(key, current_ends)
    why = _why_without_speedup(before, now)
    if before is None or now is None or why:
        return replace(alone, without_speedup=why)
    return replace(alone, references=(baseline_ends[before], current_ends[now]))


def _why_without_speedup(before: PointKey | None, now: PointKey | None) -> str:
    if before is None and now is None:
        return "neither side has runs on 1 GPU"
    if before is None:
        return "the baseline has no runs on 1 GPU"
    if now is None:
        return "no valid run on 1 GPU was measured"
    if before.batch_per_gpu != now.batch_per_gpu:
        return f"the batch on 1 GPU differs ({before.batch_per_gpu} → {now.batch_per_gpu})"
    return ""
