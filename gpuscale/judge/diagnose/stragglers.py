"""Find single slow ranks or devices: stragglers, and a slow device among runs on one GPU.

Runs on one GPU use the devices in turn. A faulty device makes T(1) uncertain rather than worse,
since one slow run in four widens the interval. Inconclusive rows are therefore examined too, with a
mean for each device instead of one over all runs.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from gpuscale.analysis.statistics.distributions import t_quantile
from gpuscale.analysis.statistics.estimates import grouped_log_sample
from gpuscale.judge.diagnose.attribution import Change, Part, Rank, Step
from gpuscale.judge.diagnose.causes import look_at_devices, look_at_loaders
from gpuscale.judge.diagnose.devices import explaining_clocks
from gpuscale.judge.diagnose.evidence import RowEvidence
from gpuscale.records.cause import Cause, CauseKind, CountOf, Remedy

_OF_THE_SKEW = 0.5
"""A rank is a straggler in a run if it lags by at least this fraction of the skew."""
_OF_THE_RUNS = 2 / 3
"""Fraction of the runs with unusual skew in which a straggler must lag, to exclude chance."""

_SIGNIFICANCE = 0.01
"""Significance level for calling a single device slow, over all devices together."""
_LEAST_SLOWDOWN = 0.05
"""Smallest slowdown of a faulty device; healthy GPUs of a model may differ by less."""
_OTHERS_MOVED = 0.25
"""If the second largest slowdown exceeds this fraction of the largest, no device is blamed."""
_LEAST_DF = 2
"""Minimum degrees of freedom for estimating the variance between runs on the same device."""

_ENOUGH_RUNS = 3
_LEAST_LAG = 0.02
"""Smallest increase of the skew reported for an inconclusive row, relative to the step time."""

_Seat = tuple[str, tuple[str, ...], int | None]
"""Identity of a rank across runs: its host, with either its devices or its rank number."""


def stragglers(row: RowEvidence, change: Change) -> Cause:
    """Return the cause of a skew: slow ranks, slow clocks, or batches that arrive late."""
    found = stragglers_of(row.point.after, change.before_s)
    in_data_s = _skew_in_data_s(row.point.after) - _skew_in_data_s(row.point.before)
    if in_data_s > change.lost_s / 2:
        kind, remedy = CauseKind.DATA, look_at_loaders(row)
    else:
        computing_s = row.point.changes[Part.COMPUTING].after_s
        clocks = explaining_clocks(
            row.symptoms, found.device_uuids, lost_s=change.lost_s, of_s=computing_s
        )
        kind = CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK
        remedy = look_at_devices(row, found.hosts) if found.hosts else Remedy("jobs_in_turn")
    return replace(found, kind=kind, evidence=row.symptoms_on(found.device_uuids), remedy=remedy)


def straggler_in_all_runs(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause if the same ranks lag in every run, by more than any rank in the baseline.

    This is used for inconclusive rows. With three runs on either side, one row in 20 has such skews
    by chance if the same rank is always the slowest.
    """
    before, after, change = row.point.before, row.point.after, row.point.changes.get(Part.SKEW)
    if change is None or min(len(before), len(after)) < _ENOUGH_RUNS:
        return
    least_s, usual_s = min(s.skew_s for s in after), max(s.skew_s for s in before)
    step_s = statistics.fmean(step.time_s for step in before)
    if least_s > usual_s and change.lost_s > _LEAST_LAG * step_s:
        found = stragglers(row, change)
        if found.seen_in == CountOf(len(after), len(after)):
            before_s, after_s = change.before_s, change.after_s
            yield replace(found, lost_s=change.lost_s, before_s=before_s, after_s=after_s)


def stragglers_of(steps: Sequence[Step], usual_skew_s: float) -> Cause:
    """Find the ranks that lag in most runs with unusual skew, and in how many runs they do.

    Hosts and devices are taken from the run with the largest skew; devices are omitted if they
    change between runs. No ranks are given if each run has a different straggler. `usual_skew_s` is
    the skew of the baseline in seconds per step; every run must have several ranks.
    """
    # A faulty device that takes its turn is not in every run, so runs below the mean are left out.
    mean_s = statistics.fmean(step.skew_s for step in steps)
    threshold_s = usual_skew_s + _OF_THE_SKEW * (mean_s - usual_skew_s)
    late = [step for step in steps if step.skew_s >= threshold_s]
    worst = max(steps, key=lambda step: step.skew_s)
    nobody = Cause(kind=CauseKind.SLOW_RANK, code="stragglers", seen_in=CountOf(0, len(steps)))
    for seat_of in (_by_device, _by_number):
        counts = Counter(seat_of(rank) for step in late for rank in _behind(step))
        seats = {seat for seat, count in counts.items() if count >= _OF_THE_RUNS * len(late)}
        if seats:
            slow = (rank for rank in worst.ranks if seat_of(rank) in seats)
            ranks = sorted(slow, key=lambda rank: rank.rank)
            hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
            there = [rank for rank in worst.ranks if rank.host in hosts]
            return replace(
                nobody,
                ranks=tuple(rank.rank for rank in ranks),
                hosts=hosts,
                device_uuids=tuple(sorted({uuid for r in ranks for uuid in seat_of(r)[1]})),
                is_whole_host=len(hosts) == 1 and 1 < len(there) == len(ranks) < len(worst.ranks),
                seen_in=CountOf(max(counts[seat] for seat in seats), len(steps)),
            )
    return nobody


def _by_device(rank: Rank) -> _Seat:
    """Identify a rank by its devices, since runs on part of a node use its GPUs in turn."""
    return (rank.host, rank.device_uuids, None) if rank.device_uuids else _by_number(rank)


def _by_number(rank: Rank) -> _Seat:
    """Identify a rank by its number, since slowness may follow it from device to device."""
    return rank.host, (), rank.rank


def _behind(step: Step) -> list[Rank]:
    limit_s = step.median.pace_s + _OF_THE_SKEW * step.skew_s
    return [rank for rank in step.ranks if rank.pace_s >= limit_s]


def _skew_in_data_s(steps: Sequence[Step]) -> float:
    """Return the skew due to waiting for and copying batches, averaged over runs."""
    return statistics.fmean(step.slowest.data_s - step.median.data_s for step in steps)


def slow_device(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause if exactly one device is slow, for a row on 1 GPU that uses them in turn."""
    found = _slow_alone(row.point.before, row.point.after) if row.point.key.gpus == 1 else None
    if found is None:
        return
    uuid, slowdown = found
    there = [step for step in row.point.after if uuid in step.median.device_uuids]
    after_s = statistics.fmean(step.time_s for step in there)
    before_s = after_s / math.exp(slowdown)
    lost_s = after_s - before_s
    clocks = explaining_clocks(row.symptoms, (uuid,), lost_s=lost_s, of_s=before_s)
    hosts = (there[0].median.host,)
    yield Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK,
        code="slow_device",
        lost_s=lost_s,
        before_s=before_s,
        after_s=after_s,
        ranks=(0,),
        hosts=hosts,
        device_uuids=(uuid,),
        seen_in=CountOf(len(there), len(row.point.after)),
        evidence=row.symptoms_on((uuid,)),
        remedy=look_at_devices(row, hosts),
    )


def _slow_alone(
    steps_before: Sequence[Step], steps_after: Sequence[Step]
) -> tuple[str, float] | None:
    """Return the slow device and the logarithm of its slowdown; None unless exactly one is slow."""
    before, after = _log_times(steps_before), _log_times(steps_after)
    if not before or len(after) < 2:
        return None
    noise = grouped_log_sample((*before.values(), *after.values()))
    if noise.variance is None or noise.df < _LEAST_DF:
        return None
    usual = {uuid: _usual(uuid, before, noise.variance) for uuid in after}
    slowdowns = {uuid: statistics.fmean(logs) - usual[uuid][0] for uuid, logs in after.items()}
    worst, next_worst = sorted(after, key=lambda uuid: -slowdowns[uuid])[:2]
    error = math.sqrt(noise.variance / len(after[worst]) + usual[worst][1])
    needed = t_quantile(1 - _SIGNIFICANCE / len(after), noise.df) * error
    if slowdowns[worst] < max(needed, _LEAST_SLOWDOWN):
        return None
    if slowdowns[next_worst] > _OTHERS_MOVED * slowdowns[worst]:
        return None
    return worst, slowdowns[worst]


def _log_times(steps: Sequence[Step]) -> Mapping[str, list[float]]:
    """Return the logarithms of step times by device."""
    logs: dict[str, list[float]] = {}
    for step in steps:
        for uuid in step.median.device_uuids:
            logs.setdefault(uuid, []).append(math.log(step.time_s))
    return logs


def _usual(
    uuid: str, before: Mapping[str, Sequence[float]], variance: float
) -> tuple[float, float]:
    """Return a device's mean log step time, and its variance; over all devices if it is new."""
    if uuid in before:
        return statistics.fmean(before[uuid]), variance / len(before[uuid])
    means = [statistics.fmean(values) for values in before.values()]
    return statistics.fmean(means), statistics.variance(means) if len(means) > 1 else variance
