"""The judgement on one row, whatever kind of baseline the row stood against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuscale.compare.matching import Entry
from gpuscale.records import (
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    QuantityName,
    ReasonCode,
    Statement,
    Verdict,
)
from gpuscale.statistics.estimates import FURTHER_RUNS

CREDIBLE = 3
"""Runs tell their own spread too badly to foresee more than so many times their number."""
FEWEST_VALID_RUNS = 2
"""So many runs must give a number, and as many as did not, for a pass beside failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judged part of an `EntryVerdict`; its fields mean what they mean there."""

    verdict: Verdict
    reason: Statement
    is_reference: bool = False
    """The row passes only as the reference of other rows."""
    finding: Finding | MetricSpec | None = None
    change: Estimate | None = None
    changed_quantity: QuantityName | None = None
    minimum_detectable_loss: float | None = None
    further_runs: int | None = None
    metrics: tuple[MetricVerdict, ...] = ()
    excess_losses: Mapping[str, float] = field(default_factory=dict)
    """By how much each judged quantity lies beyond its margin, to the worse; negative within."""
    decided_by: str | None = None
    """The key in `excess_losses` of what a loss was found by."""
    is_suspect: bool = False
    """Something is worse than its margin, without regard to the family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRuns:
    """The further runs that would settle a row, were they like those that there are."""

    needed: int | None
    """About the fewest that do; None where none of the numbers tried does."""
    made: int
    """Runs now, of the sample that has the fewest."""

    @property
    def credible(self) -> int | None:
        """The number, where it can be believed."""
        if self.needed is None or self.needed > CREDIBLE * self.made:
            return None
        return self.needed

    @property
    def advice(self) -> Statement:
        """The advice on a row that runs can settle."""
        if self.credible is None:
            return Statement.of(ReasonCode.UNKNOWN_FURTHER_RUNS, made=self.made)
        return Statement.of(ReasonCode.FURTHER_RUNS, needed=self.credible)


def required_runs(settles: Callable[[int], bool], *, made: int) -> RequiredRuns:
    """The required runs of a row that is inconclusive now.

    Args:
        settles: Tells if so many further runs would settle it. More settle what fewer do, but
            for rare rows; so the numbers are halved, not tried all.
        made: Runs now, of the sample that has the fewest.
    """
    low, high = 0, len(FURTHER_RUNS) - 1
    if not settles(FURTHER_RUNS[high]):
        return RequiredRuns(needed=None, made=made)
    while low < high:
        middle = (low + high) // 2
        if settles(FURTHER_RUNS[middle]):
            high = middle
        else:
            low = middle + 1
    return RequiredRuns(needed=FURTHER_RUNS[high], made=made)


def too_few_valid_runs(entry: Entry | None) -> Mapping[str, object] | None:
    """The facts of runs that cannot carry a pass; None where they can, and where none failed.

    Those that gave a number are no fair sample of all where most gave none.
    """
    if entry is None:
        return None
    valid, failed = entry.point.valid_runs, entry.point.failed_runs
    if not failed or valid >= max(failed, FEWEST_VALID_RUNS):
        return None
    return {"valid": valid, "made": valid + failed, "failures": entry.failures}
