"""What judging says of one row, whatever kind of baseline the row stood against."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscale.records import Estimate, Finding, MetricVerdict, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judged part of an `EntryVerdict`; its fields mean what they mean there."""

    verdict: Verdict
    reason: str
    is_reference: bool = False
    """Whether the row passes only as the reference of other rows."""
    finding: Finding | None = None
    change: Estimate | None = None
    changed_quantity: str | None = None
    minimum_detectable_loss: float | None = None
    further_runs: int | None = None
    metrics: tuple[MetricVerdict, ...] = ()
    excess_losses: Mapping[str, float] = field(default_factory=dict)
    """By how much each judged quantity lies beyond its margin, to the worse; negative within."""
    decided_by: str | None = None
    """The key in `excess_losses` of what a loss was found by."""
    is_suspect: bool = False
    """Whether something looks worse than its margin, without regard to the family."""
