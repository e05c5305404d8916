"""Means of log step times with their variances, and differences between such means.

Each run contributes one number: runs are independent samples, but the steps of a run are not.
A difference of logarithms is, if small, a relative change.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from gpuscale.analysis.probabilities import t_probability, t_quantile
from gpuscale.records import Estimate

CONFIDENCE = 0.95
SIGNIFICANCE = 0.01
_POWER = 0.95
RELEVANT = 0.1
"""One-sided p-values above this value are approximate, since no decision depends on them."""

_LARGEST_EXPONENT = 600.0
_SMALLEST_TAIL = 1e-12
_FURTHEST = 230.0
"""Logarithm of the largest t quantile that is tried; its square must not overflow."""
_MOST_STEPS = 60
_EXACT = 1e-6


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One independent contribution to a variance; `df`, its degrees of freedom, may be infinite."""

    variance: float
    df: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and variance of the logarithms of `count` measured values."""

    mean: float
    variance: float | None
    """Variance of one value, not of the mean; None if unknown."""
    count: int
    df: float
    """Degrees of freedom of `variance`; 0 if unknown."""

    def term(self) -> Term | None:
        """Return the variance of the sample mean, as a `Term`; None if it is unknown."""
        if self.variance is None:
            return None
        return Term(variance=self.variance * (1 / self.count), df=self.df)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """An estimated difference on the log scale, normally distributed about the true difference."""

    value: float
    parts: tuple[Term, ...] | None
    """Independent contributions to the squared standard error; None if the error is unknown."""

    @property
    def variance(self) -> float | None:
        """The squared standard error; None if unknown."""
        return None if self.parts is None else math.fsum(part.variance for part in self.parts)

    def half_width(self, probability: float) -> float | None:
        """Return the distance from `value` to its one-sided bound; None if the error is unknown.

        `probability` (>= 0.5) is the bound's confidence. Each standard error is multiplied by
        its own quantile of Student's t, and the squares are added (Howe 1974). Welch-Satterthwaite
        would give too many degrees of freedom if a few runs agree by chance.
        """
        if self.parts is None:
            return None
        squares = (part.variance * t_quantile(probability, part.df) ** 2 for part in self.parts)
        return math.sqrt(math.fsum(squares))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the two-sided confidence interval; None if the variance is unknown."""
        half = self.half_width((1 + confidence) / 2)
        return None if half is None else (self.value - half, self.value + half)

    def lower_bound(self, confidence: float = CONFIDENCE) -> float | None:
        """Return the one-sided lower confidence bound; None if the variance is unknown."""
        half = self.half_width(confidence)
        return None if half is None else self.value - half

    def p_below_zero(self) -> float | None:
        """Return the p-value of a one-sided test for a true value below 0; None if unknown."""
        return self._p_value(is_beyond=self.value < 0)

    def p_above_zero(self) -> float | None:
        """Return the p-value of a one-sided test for a true value above 0; None if unknown."""
        return self._p_value(is_beyond=self.value > 0)

    def _p_value(self, *, is_beyond: bool) -> float | None:
        """Return a one-sided p-value; `is_beyond` tells if the value lies on the tested side."""
        if self.parts is None:
            return None
        tail = _tail(abs(self.value), self.parts)
        return tail if is_beyond else 1 - tail

    def detectable_loss(
        self, *, significance: float = SIGNIFICANCE, margin: float = 0.0
    ) -> float | None:
        """Return the smallest relative decrease detected with 95% probability; None if unknown.

        Detected means a p-value below `significance` and a measured decrease above `margin`.
        """
        needed, power = self.half_width(1 - significance), self.half_width(_POWER)
        if needed is None or power is None:
            return None
        return 1 - exponential(-(max(needed, -math.log1p(-margin)) + power))

    def __neg__(self) -> "Difference":
        return Difference(value=-self.value, parts=self.parts)

    def estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the difference and its confidence interval, both on the log scale."""
        low, high = self.interval(confidence) or (None, None)
        return Estimate(value=self.value, low=low, high=high)

    def exponential(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the difference and its interval, converted from the log scale to ratios."""
        return self.estimate(confidence).mapped(exponential)

    def relative_change(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the estimate as a relative change; 0.02 means 2% more."""
        return self.exponential(confidence).mapped(lambda factor: factor - 1)


def exponential(exponent: float) -> float:
    """Return e to the power `exponent`, limited so that the result stays positive and finite."""
    is_small = -_LARGEST_EXPONENT < exponent < _LARGEST_EXPONENT
    return math.exp(exponent if is_small else math.copysign(_LARGEST_EXPONENT, exponent))


def log_sample(logs: Sequence[float]) -> Sample:
    """Return the sample of one or more logarithms; its variance is None if there is only one."""
    return grouped_log_sample([logs])


def grouped_log_sample(groups: Iterable[Sequence[float]]) -> Sample:
    """Return the sample of all values, with the variance pooled *within* groups (allocations)."""
    filled = [group for group in groups if group]
    values = [value for group in filled for value in group]
    means = [math.fsum(group) / len(group) for group in filled]
    squares = math.fsum(
        (value - mean) ** 2 for group, mean in zip(filled, means, strict=True) for value in group
    )
    df = len(values) - len(filled)
    return Sample(
        mean=math.fsum(values) / len(values),
        variance=squares / df if df else None,
        count=len(values),
        df=df,
    )


def welch_term(terms: Iterable[Term]) -> Term:
    """Return the sum of independent terms, with Welch-Satterthwaite degrees of freedom."""
    known = tuple(terms)
    total = math.fsum(term.variance for term in known)
    weight = math.fsum(term.variance**2 / term.df for term in known if term.df)
    return Term(variance=total, df=total**2 / weight if weight > 0 else math.inf)


def difference(value: float, terms: Iterable[Term | None]) -> Difference:
    """Return a `Difference` whose variance is the sum of `terms`, unknown if any term is None."""
    known = _all_known(terms)
    return Difference(value=value, parts=None if known is None else (welch_term(known),))


def difference_of_levels(value: float, levels: Iterable[Term | None]) -> Difference:
    """Return a `Difference` with the parts `levels`; its variance is unknown if any is None."""
    if (known := _all_known(levels)) is None:
        return Difference(value=value, parts=None)
    varying = tuple(level for level in known if level.variance > 0)
    return Difference(value=value, parts=varying or known[:1])


def _all_known(terms: Iterable[Term | None]) -> tuple[Term, ...] | None:
    given = tuple(terms)
    known = tuple(term for term in given if term is not None)
    return known if len(known) == len(given) else None


@lru_cache(maxsize=4096)
def _tail(distance: float, parts: tuple[Term, ...]) -> float:
    """Return the one-sided p-value of a difference; p-values above `RELEVANT` are approximate."""
    variance = math.fsum(part.variance for part in parts)
    if variance == 0:
        return 0.5 if distance == 0 else 0.0
    first, *others = sorted(parts, key=lambda part: part.df)
    ratio = distance / math.sqrt(variance)
    largest = t_probability(-ratio, first.df)
    if not others or t_probability(-ratio, math.inf) > RELEVANT or largest < _SMALLEST_TAIL:
        return largest
    # Solve for the quantile of the part with the fewest degrees of freedom. It lies between the
    # quantile if all parts had as few, and the quantile if there were no other part.
    low, goal = math.log(ratio), math.log(distance)
    high = min(goal - 0.5 * math.log(first.variance), _FURTHEST)
    below, above = (_log_half_width(at, first, others) - goal for at in (low, high))
    at = high
    for _ in range(_MOST_STEPS):
        if high - low < _EXACT or above <= 0:
            break
        at = low - below * (high - low) / (above - below)
        excess = _log_half_width(at, first, others) - goal
        if abs(excess) < _EXACT:
            break
        # Illinois variant of the false position method: halve the value at the retained end.
        if excess < 0:
            low, below, above = at, excess, above / 2
        else:
            high, above, below = at, excess, below / 2
    return t_probability(-math.exp(at), first.df)


def _log_half_width(log_quantile: float, first: Term, others: Sequence[Term]) -> float:
    """Return the logarithm of an interval's half width if exp(log_quantile) is the t of `first`."""
    quantile = math.exp(log_quantile)
    tail = t_probability(-quantile, first.df)
    squares = first.variance * quantile**2 + math.fsum(
        part.variance * max(t_quantile(tail, part.df), -math.exp(_FURTHEST)) ** 2 for part in others
    )
    return math.log(squares) / 2
