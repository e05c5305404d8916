"""How often one look at the data may err; fewer where a rule looks several times."""

from dataclasses import dataclass

from gpuscale.statistics.estimates import CONFIDENCE, SIGNIFICANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """The nominal error rates of one look."""

    significance: float = SIGNIFICANCE
    """One-sided p, adjusted for the family, below which a change counts."""
    confidence: float = CONFIDENCE
    """Of the bound that *ok* puts on a loss."""


ONE_LOOK = ErrorRates()
"""For a comparison that is made once."""
