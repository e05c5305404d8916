"""The tested change of one quantity, and what may be said of it."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuscale.records import Limits
from gpuscale.statistics.estimates import CONFIDENCE, SIGNIFICANCE, Difference, exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """The nominal error rates of one look."""

    significance: float = SIGNIFICANCE
    """One-sided p, adjusted for the family, below which a change counts."""
    confidence: float = CONFIDENCE
    """Of the bound that *ok* puts on a loss."""


ONE_ANALYSIS = ErrorRates()
"""For a comparison that is made once."""

TIME_WEIGHT = 1.0
OTHER_WEIGHT = 0.1
"""The share of the family's error for a test of a speedup or metric; that of T has 1.

Where training got slower, only the test of T can find it if all numbers of GPUs did, and it is
the less sure one: nights differ more in T than in S. A lost speedup is far beyond the limit
where T supports it, and T must.
"""


def loss_of_throughput(gain: float) -> float:
    """The relative loss that a logarithm of throughput or speedup, now over then, stands for."""
    return 1 - exponential(gain)


def relative_rise(gain: float) -> float:
    """The relative rise of what is better when smaller; `gain` is then over now, as logarithm."""
    return exponential(-gain) - 1


def rise_in_points(gain: float) -> float:
    """The rise of what is better when smaller; `gain` is then minus now, in points."""
    return -gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The tested change of one quantity; a gain above 0 is better."""

    name: str
    """A `QuantityName`, or that of a metric."""
    gain: Difference
    p_worse: float | None
    """One-sided and adjusted for the family; None where nothing tells the spread."""
    p_better: float | None
    limits: Limits
    rates: ErrorRates
    loss_of: Callable[[float], float] = loss_of_throughput
    """From a gain to the loss that margins are about."""

    @property
    def loss(self) -> float:
        """The observed loss, as a fraction; negative for a gain."""
        return self.loss_of(self.gain.value)

    @property
    def loss_bound(self) -> float | None:
        """The loss that the truth does not exceed, with the confidence of one look (95%)."""
        bound = self.gain.lower_bound(self.rates.confidence)
        return None if bound is None else self.loss_of(bound)

    @property
    def excess_loss(self) -> float:
        """By how much the observed loss lies beyond the margin; negative within it."""
        return self.loss - self.limits.margin

    @property
    def ok_bound(self) -> float:
        """The bound of `ok`: at least the margin, or a loss within it could be neither."""
        return max(self.limits.ok_bound, self.limits.margin)

    @property
    def is_ok(self) -> bool:
        """True where a loss as large as the bound of `ok` is excluded."""
        return self.loss_bound is not None and self.loss_bound < self.ok_bound

    @property
    def is_worse(self) -> bool:
        """Significantly worse, and by more than the margin."""
        return _below(self.p_worse, self.rates.significance) and self.loss > self.limits.margin

    @property
    def is_better(self) -> bool:
        """Significantly better, and by more than the margin."""
        return _below(self.p_better, self.rates.significance) and -self.loss > self.limits.margin

    def moved_worse(self, significance: float) -> bool:
        """Worse by more than the margin, at this one-sided p without regard to the family.

        It says which end of a ratio moved once the family has told that the ratio did.
        """
        return _below(self.gain.p_below_zero(), significance) and self.loss > self.limits.margin

    def moved_better(self, significance: float) -> bool:
        """The same for the better."""
        return _below(self.gain.p_above_zero(), significance) and -self.loss > self.limits.margin


def _below(probability: float | None, limit: float) -> bool:
    return probability is not None and probability < limit
