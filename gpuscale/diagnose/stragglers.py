"""Stragglers: ranks, or devices, that the others waited for, and what makes them slow."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuscale.diagnose.attribution import Part, Rank, Step
from gpuscale.diagnose.devices import explaining_clocks
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.slower_parts import look_at_devices, look_at_loaders
from gpuscale.records.cause import Cause, CauseCode, CauseKind, CountOf, Remedy, RemedyCode

_OF_THE_SKEW = 0.5
"""A rank is a straggler of a run where its pace is behind by at least this part of the skew."""
_OF_THE_RUNS = 2 / 3
"""A straggler in fewer of the runs with more skew than usual is chance."""


_Seat = tuple[str, tuple[str, ...], int | None]
"""What can stay slow in run after run: devices of a host, or a rank's number on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Who was behind in the runs of now; no ranks where it was another one in each run."""

    ranks: tuple[Rank, ...]
    """As the run with the largest skew shows them; without devices where those change."""
    runs: int
    """In how many runs they were behind."""
    is_whole_host: bool
    """They are all the ranks of one host, among ranks of other hosts."""


def stragglers_of(steps: Sequence[Step], usual_skew_s: float) -> Stragglers:
    """The ranks that are behind in most of the runs whose skew is unusual.

    The usual is the baseline's, in seconds per step; each run has several ranks.
    """
    # A sick device that takes its turn is not in every run, so runs below the mean are left out.
    mean_s = statistics.fmean(step.skew_s for step in steps)
    threshold_s = usual_skew_s + _OF_THE_SKEW * (mean_s - usual_skew_s)
    late = [step for step in steps if step.skew_s >= threshold_s]
    for seat_of in (_by_device, _by_number):
        counts = Counter(seat_of(rank) for step in late for rank in _behind(step))
        seats = {seat for seat, count in counts.items() if count >= _OF_THE_RUNS * len(late)}
        if seats:
            return _named(late, seats, seat_of, max(counts[seat] for seat in seats))
    return Stragglers(ranks=(), runs=0, is_whole_host=False)


def _named(
    late: Sequence[Step], seats: Collection[_Seat], seat_of: Callable[[Rank], _Seat], runs: int
) -> Stragglers:
    worst = max(late, key=lambda step: step.skew_s)
    ranks = [rank for rank in worst.ranks if seat_of(rank) in seats]
    hosts = {rank.host for rank in ranks}
    there = [rank for rank in worst.ranks if rank.host in hosts]
    return Stragglers(
        ranks=tuple(
            replace(rank, device_uuids=seat_of(rank)[1])
            for rank in sorted(ranks, key=lambda rank: rank.rank)
        ),
        runs=runs,
        is_whole_host=len(hosts) == 1 and 1 < len(there) == len(ranks) < len(worst.ranks),
    )


def _by_device(rank: Rank) -> _Seat:
    """Runs on fewer GPUs than the node has take them in turn: a sick one serves several ranks."""
    return (rank.host, rank.device_uuids, None) if rank.device_uuids else _by_number(rank)


def _by_number(rank: Rank) -> _Seat:
    """For what follows a rank from device to device, or where there are no devices."""
    return rank.host, (), rank.rank


def _behind(step: Step) -> list[Rank]:
    limit_s = step.median.pace_s + _OF_THE_SKEW * step.skew_s
    return [rank for rank in step.ranks if rank.pace_s >= limit_s]


def stragglers(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """One rank, or a few of them, keep the others waiting."""
    change = row.standing_out(Part.SKEW)
    if change is None:
        return
    found = stragglers_of(row.point.after, change.before_s)
    uuids = frozenset(uuid for rank in found.ranks for uuid in rank.device_uuids)
    hosts = tuple(dict.fromkeys(rank.host for rank in found.ranks))
    in_data_s = _skew_in_data_s(row.point.after) - _skew_in_data_s(row.point.before)
    if in_data_s > change.lost_s / 2:
        kind, remedy = CauseKind.DATA, look_at_loaders(row)
    else:
        computing_s = row.point.changes[Part.COMPUTING].after_s
        slowdown = change.lost_s / computing_s if computing_s > 0 else math.inf
        clocks = explaining_clocks(row.symptoms, uuids, slowdown)
        kind = CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK
        remedy = look_at_devices(row, hosts) if hosts else Remedy(code=RemedyCode.JOBS_IN_TURN)
    yield replace(
        row.cause(change, kind, CauseCode.STRAGGLERS),
        ranks=tuple(rank.rank for rank in found.ranks),
        hosts=hosts,
        device_uuids=tuple(sorted(uuids)),
        is_whole_host=found.is_whole_host,
        seen_in=CountOf(found.runs, len(row.point.after)),
        evidence=row.symptoms_on(uuids),
        remedy=remedy,
    )


def _skew_in_data_s(steps: Sequence[Step]) -> float:
    """How much of the skew is in getting batches, as a mean over runs."""
    return statistics.fmean(step.slowest.data_s - step.median.data_s for step in steps)
