"""Which ranks, or which devices, the others waited for."""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuscale.diagnose.steps import Rank, Step

_OF_THE_SKEW = 0.5
"""A rank is a laggard of a run where its pace is behind by at least this part of the skew."""

_OF_THE_RUNS = 2 / 3
"""A laggard in fewer of the runs with more skew than usual is chance."""


class Seat(NamedTuple):
    """What can stay slow in run after run: a device, or a rank's number on a host."""

    host: str
    device_uuids: tuple[str, ...]
    rank: int | None
    """None where the devices name the seat."""

    @classmethod
    def device_of(cls, rank: Rank) -> "Seat":
        """The seat by its devices, where there are any.

        Runs on fewer GPUs than the node has take different devices in turn, so a sick one
        serves different ranks.
        """
        if rank.device_uuids:
            return cls(rank.host, rank.device_uuids, None)
        return cls.number_of(rank)

    @classmethod
    def number_of(cls, rank: Rank) -> "Seat":
        """The seat by its number, for what follows the rank from device to device."""
        return cls(rank.host, (), rank.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laggards:
    """Who lagged in the runs of now; no ranks where it was another one in each run."""

    ranks: tuple[Rank, ...]
    """As the run with the largest skew shows them; without devices where those change."""
    runs: int
    """In how many runs they lagged."""
    is_whole_host: bool
    """Whether they are all the ranks of one host, among ranks of other hosts."""


def laggards_of(steps: Sequence[Step], usual_skew_s: float) -> Laggards:
    """The ranks that lag in most of the runs whose skew is unusual.

    Args:
        steps: The runs of now, of several ranks each.
        usual_skew_s: Of the baseline, in seconds per step.
    """
    # A sick device that takes its turn is not in every run, so runs below the mean are left out.
    mean_s = statistics.fmean(step.skew_s for step in steps)
    threshold_s = usual_skew_s + _OF_THE_SKEW * (mean_s - usual_skew_s)
    late = [step for step in steps if step.skew_s >= threshold_s]
    for seat_of in (Seat.device_of, Seat.number_of):
        counts = Counter(seat_of(rank) for step in late for rank in _behind(step))
        seats = {seat for seat, count in counts.items() if count >= _OF_THE_RUNS * len(late)}
        if seats:
            return _laggards(late, seats, seat_of, max(counts[seat] for seat in seats))
    return Laggards(ranks=(), runs=0, is_whole_host=False)


def _laggards(
    late: Sequence[Step], seats: Collection[Seat], seat_of: Callable[[Rank], Seat], runs: int
) -> Laggards:
    worst = max(late, key=lambda step: step.skew_s)
    ranks = [rank for rank in worst.ranks if seat_of(rank) in seats]
    hosts = {rank.host for rank in ranks}
    there = [rank for rank in worst.ranks if rank.host in hosts]
    return Laggards(
        ranks=tuple(
            replace(rank, device_uuids=seat_of(rank).device_uuids)
            for rank in sorted(ranks, key=lambda rank: rank.rank)
        ),
        runs=runs,
        is_whole_host=len(hosts) == 1 and 1 < len(there) == len(ranks) < len(worst.ranks),
    )


def _behind(step: Step) -> list[Rank]:
    limit_s = step.median.pace_s + _OF_THE_SKEW * step.skew_s
    return [rank for rank in step.ranks if rank.pace_s >= limit_s]
