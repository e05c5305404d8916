"""Speedup and efficiency of both sides of a row, judged or not: the shape E(n)."""

from gpuscale.compare.matching import Row
from gpuscale.compare.pairing import entry_logs, entry_point
from gpuscale.compare.published import published_speedup
from gpuscale.records import Baseline, Estimate, MeasuredEntry, PublishedFigure, SpeedupPair
from gpuscale.scaling import reference_key, speedup_estimate
from gpuscale.statistics import Sample, log_sample

_UNKNOWN = SpeedupPair(speedup=None, efficiency=None)


def baseline_pair(row: Row, baseline: Baseline) -> SpeedupPair:
    """Speedup and efficiency that the baseline has for a row."""
    if row.entry is not None:
        return _pair(_measured_speedup(row.entry, baseline), row.key.gpus)
    if row.figure is not None:
        return _pair(_published_speedup(row.figure, baseline), row.key.gpus)
    return _UNKNOWN


def current_pair(row: Row) -> SpeedupPair:
    """Speedup and efficiency that the results have for a row."""
    if row.current is None:
        return _UNKNOWN
    point = row.current.point
    return SpeedupPair(speedup=point.speedup, efficiency=point.efficiency)


def _pair(speedup: Estimate | None, gpus: int) -> SpeedupPair:
    if speedup is None:
        return _UNKNOWN
    return SpeedupPair(speedup=speedup, efficiency=speedup.scaled(1 / gpus))


def _measured_speedup(entry: MeasuredEntry, baseline: Baseline) -> Estimate | None:
    if entry.gpus == 1:
        return Estimate(value=1.0)
    key = entry_point(entry)
    entries = {
        entry_point(other): other
        for other in baseline.measured
        if other.gpus == 1 and other.configuration == entry.configuration
    }
    reference = reference_key(key, entries)
    if reference is None:
        return None
    return speedup_estimate(
        _sample(entry), key.global_batch, _sample(entries[reference]), reference.global_batch
    )


def _published_speedup(figure: PublishedFigure, baseline: Baseline) -> Estimate | None:
    if figure.gpus == 1:
        return Estimate(value=1.0)
    speedup = published_speedup(figure, baseline)
    return None if speedup is None else Estimate(value=speedup)


def _sample(entry: MeasuredEntry) -> Sample:
    return log_sample([log for logs in entry_logs(entry).values() for log in logs])
