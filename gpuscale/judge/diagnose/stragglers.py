"""Find the ranks that lag behind the others in most runs."""

import statistics
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.judge.diagnose.step_parts import Rank, Step
from gpuscale.records.cause import Cause, CauseKind, CountOf

_LAG_FRACTION = 0.5
"""A rank is a straggler in a run if it lags by at least this fraction of the skew."""
_RUN_FRACTION = 2 / 3
"""Smallest fraction of the runs with unusual skew in which a straggler lags."""
_RankId = tuple[str, tuple[str, ...], int | None]
"""Identity of a rank across runs: its host, with either its devices or its rank number."""


def stragglers_of(steps: Sequence[Step], usual_skew_s: float) -> Cause:
    """Return a cause that names the ranks that lag in most of the runs with unusual skew.

    Hosts and devices are taken from the run with the largest skew; devices are omitted if they
    change between runs. No ranks are given if each run has a different straggler. `usual_skew_s` is
    the skew of the baseline in seconds per step; every run must have several ranks.
    """
    # Runs may use devices in turn, so runs with little skew may lack the faulty device.
    mean_s = statistics.fmean(step.skew_s for step in steps)
    threshold_s = usual_skew_s + _LAG_FRACTION * (mean_s - usual_skew_s)
    late = [step for step in steps if step.skew_s >= threshold_s]
    worst = max(steps, key=lambda step: step.skew_s)
    unnamed = Cause(kind=CauseKind.SLOW_RANK, code="stragglers", seen_in=CountOf(0, len(steps)))
    for identify in (_by_device, _by_number):
        counts = Counter(identify(rank) for step in late for rank in _behind(step))
        ids = {rank_id for rank_id, count in counts.items() if count >= _RUN_FRACTION * len(late)}
        if ids:
            slow = (rank for rank in worst.ranks if identify(rank) in ids)
            ranks = sorted(slow, key=lambda rank: rank.rank)
            hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
            there = [rank for rank in worst.ranks if rank.host in hosts]
            return replace(
                unnamed,
                ranks=tuple(rank.rank for rank in ranks),
                hosts=hosts,
                device_uuids=tuple(sorted({uuid for r in ranks for uuid in identify(r)[1]})),
                is_whole_host=len(hosts) == 1 and 1 < len(there) == len(ranks) < len(worst.ranks),
                seen_in=CountOf(max(counts[rank_id] for rank_id in ids), len(steps)),
            )
    return unnamed


def _by_device(rank: Rank) -> _RankId:
    """Identify a rank by its devices, since runs on part of a node use the node's GPUs in turn."""
    return (rank.host, rank.device_uuids, None) if rank.device_uuids else _by_number(rank)


def _by_number(rank: Rank) -> _RankId:
    """Identify a rank by its number, since a slow rank may change devices between runs."""
    return rank.host, (), rank.rank


def _behind(step: Step) -> list[Rank]:
    limit_s = step.median.pace_s + _LAG_FRACTION * step.skew_s
    return [rank for rank in step.ranks if rank.pace_s >= limit_s]
