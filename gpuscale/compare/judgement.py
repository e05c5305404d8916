"""What judging says of one row, whatever kind of baseline the row stood against."""

from dataclasses import dataclass

from gpuscale.records import Estimate, Finding, Verdict


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
