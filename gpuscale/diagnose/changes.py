"""By how much each part of a step changed, and which of it stands out from the noise."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.diagnose.sides import Sides
from gpuscale.diagnose.steps import Part
from gpuscale.statistics.distributions import t_quantile

NAMED_CONFIDENCE = 0.95
"""One-sided, that a part got longer at all; that the step did is known when this is asked."""

NAMED_SHARE = 0.1
"""A part with less of the lost time is not named."""

_PRIOR_DF = 3.0
"""How many degrees of freedom the deviation of the whole step is worth for that of a part."""

_UNKNOWN_DEVIATION = 0.05
"""Of the step time between runs, where single runs on both sides do not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One part of a step, then and now, in seconds per step: means over runs."""

    part: Part
    then_s: float
    now_s: float
    lost_s: float
    """now - then, less what another part gained by it; negative for a gain."""
    noise_s: float
    """A change up to this is no finding."""
    share: float
    """What part of all time lost it carries; 0 for a gain."""

    @property
    def growth(self) -> float:
        """By which fraction of itself the part got longer; infinite for one that took no time."""
        return self.lost_s / self.then_s if self.then_s > 0 else math.inf

    @property
    def stands_out(self) -> bool:
        """Whether it is longer than before beyond its noise, and carries enough to be named."""
        return self.lost_s > self.noise_s and self.share >= NAMED_SHARE


def changes_of(sides: Sides, allocation_deviation: float) -> dict[Part, Change]:
    """The change of every part that both sides tell; empty where a side tells none.

    Means over runs, because the verdict is on means too and because they add up: a part that
    is slow in one run of three carries the loss of that run.

    Args:
        sides: The runs of one number of GPUs.
        allocation_deviation: By which fraction a part may differ from one job to the next.
    """
    if not sides.then or not sides.now:
        return {}
    then, now = ([step.parts for step in steps] for steps in (sides.then, sides.now))
    spread = _Spread.of([step.time_s for step in sides.then], [step.time_s for step in sides.now])
    found = {}
    for part in then[0]:
        before, after = _values(part, then), _values(part, now)
        if not before or not after:
            continue
        then_s, now_s = statistics.fmean(before), statistics.fmean(after)
        found[part] = Change(
            part=part,
            then_s=then_s,
            now_s=now_s,
            lost_s=now_s - then_s,
            noise_s=_noise_s(_Spread.of(before, after), spread, allocation_deviation * then_s),
            share=0.0,
        )
    return _with_shares(_without_hidden_communication(found))


def _values(part: Part, steps: Iterable[Mapping[Part, float]]) -> list[float]:
    return [parts[part] for parts in steps if part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The variance between runs of one side, pooled over both."""

    squares: float
    df: int
    shares: float
    """The variance of a difference of means over that of a run."""
    mean_s: float

    @classmethod
    def of(cls, then: Sequence[float], now: Sequence[float]) -> "_Spread":
        sides = (then, now)
        return cls(
            squares=math.fsum((v - statistics.fmean(side)) ** 2 for side in sides for v in side),
            df=len(then) + len(now) - 2,
            shares=1 / len(then) + 1 / len(now),
            mean_s=statistics.fmean(then),
        )

    @property
    def variance(self) -> float:
        """Of one run, in square seconds."""
        return self.squares / self.df if self.df else (_UNKNOWN_DEVIATION * self.mean_s) ** 2


def _noise_s(part: _Spread, step: _Spread, allocations_s: float) -> float:
    """What the mean of a part may differ by without a cause.

    A few runs tell a variance badly, so it is drawn towards that of the whole step, which no
    part of it exceeds by much.
    """
    df = _PRIOR_DF + part.df
    variance = (_PRIOR_DF * step.variance + part.squares) / df
    return t_quantile(NAMED_CONFIDENCE, df) * math.sqrt(variance * part.shares + allocations_s**2)


def _without_hidden_communication(changes: dict[Part, Change]) -> dict[Part, Change]:
    """Computing less what it only took over from communication.

    Whatever makes ranks slow on their own, such as late batches, hides their communication. The
    steps without synchronisation then take as long as those with it: communication seems to
    have gone, and their pace, of which computing is the remainder, to have grown by as much.
    """
    computing, communication = changes.get(Part.COMPUTING), changes.get(Part.COMMUNICATION)
    if computing is None or communication is None:
        return changes
    hidden_s = min(computing.lost_s, -communication.lost_s)
    if hidden_s <= 0:
        return changes
    return changes | {
        Part.COMPUTING: replace(computing, lost_s=computing.lost_s - hidden_s),
        Part.COMMUNICATION: replace(communication, lost_s=communication.lost_s + hidden_s),
    }


def _with_shares(changes: dict[Part, Change]) -> dict[Part, Change]:
    lost_s = math.fsum(change.lost_s for change in changes.values() if change.lost_s > 0)
    return {
        part: replace(change, share=max(0.0, change.lost_s) / lost_s if lost_s else 0.0)
        for part, change in changes.items()
    }
