"""The parts that the step time of one run is made of.

T = communication + pace of the slowest rank + rest, and the pace of the slowest rank is the
data and the computing of the median rank and the skew. A slow rank makes the others wait
inside their all-reduce, so no rank's own phases tell communication: the difference between
steps with and without gradient synchronisation does, and the paces without it tell the skew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gpuscale.records import Phases, RankReport, Run


class Part(Enum):
    """Where the seconds of a step can be."""

    COMMUNICATION = "communication"
    DATA = "data"
    COMPUTING = "computing"
    SKEW = "skew"
    REST = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank whose own pace is known, with what it is made of, in seconds per step."""

    rank: int
    host: str
    device_uuids: tuple[str, ...]
    pace_s: float
    phases: Phases

    @property
    def data_s(self) -> float:
        """Waiting for the batch and copying it."""
        return self.phases.data_s + self.phases.h2d_s

    @property
    def computing_s(self) -> float:
        """The rest of its own pace, which no wait for other ranks is in."""
        return self.pace_s - self.data_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An average step of one run, taken apart; the parts add up to its time."""

    time_s: float
    communication_s: float | None
    """None where there is a single rank, which has nobody to wait for."""
    ranks: tuple[Rank, ...]
    """From fast to slow."""
    run: Run

    @property
    def median(self) -> Rank:
        """The median rank; of an even number, the faster of the middle two."""
        return self.ranks[(len(self.ranks) - 1) // 2]

    @property
    def slowest(self) -> Rank:
        """The rank that the others wait for."""
        return self.ranks[-1]

    @property
    def skew_s(self) -> float:
        """By how much the slowest rank lags behind the median rank."""
        return self.slowest.pace_s - self.median.pace_s

    @property
    def parts(self) -> Mapping[Part, float]:
        """Seconds by part; a single rank has neither communication, nor skew, nor a rest."""
        own = {Part.DATA: self.median.data_s, Part.COMPUTING: self.median.computing_s}
        if self.communication_s is None:
            return own
        return own | {
            Part.COMMUNICATION: self.communication_s,
            Part.SKEW: self.skew_s,
            Part.REST: self.time_s - self.communication_s - self.slowest.pace_s,
        }


def step_of(run: Run) -> Step | None:
    """The parts of a valid run's step; None where its evidence does not tell them."""
    ranks = _ranks(run.ranks)
    exposed_s = run.measured.get("exposed_communication_s")
    if not ranks or (len(ranks) > 1 and exposed_s is None):
        return None
    return Step(
        time_s=run.step_time_s,
        communication_s=exposed_s if len(ranks) > 1 else None,
        ranks=ranks,
        run=run,
    )


def _ranks(found: Iterable[RankReport]) -> tuple[Rank, ...]:
    """From fast to slow; none where one of them is not known."""
    ranks = []
    for each in found:
        if each.pace_s is None or each.phases is None:
            return ()
        ranks.append(
            Rank(
                rank=each.rank,
                host=each.host,
                device_uuids=each.device_uuids,
                pace_s=each.pace_s,
                phases=each.phases,
            )
        )
    return tuple(sorted(ranks, key=lambda rank: rank.pace_s))
