"""Means of per-run logarithms, differences of such means, and what may be said of them.

Everything here is on logarithms of step times, one number a run: steps of one run are not
independent samples, runs are. A difference of logarithms is a relative change.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuscale.records.verdict import Estimate
from gpuscale.statistics.distributions import t_probability, t_quantile

CONFIDENCE = 0.95
SIGNIFICANCE = 0.01
POWER = 0.95
RELEVANT = 0.1
"""One-sided p above this only tells that it is: no rule here asks for more."""
FURTHER_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
"""The numbers of further runs that are tried on an inconclusive case."""

_LARGEST_EXPONENT = 600.0
_SMALLEST_TAIL = 1e-12
_FURTHEST = 230.0
"""Logarithm of the largest quantile that is looked for; its square is a number."""
_MOST_STEPS = 60
_EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Mean and spread of `count` logarithms."""

    mean: float
    variance: float | None
    """Of one value, not of the mean; None where nothing tells the spread."""
    count: int
    df: float
    """Degrees of freedom of `variance`; 0 where it is None."""

    def term(self, share: float | None = None) -> "Term | None":
        """The part of the variance of a difference that the sample adds: `variance * share`.

        Args:
            share: 1 / `count` unless given; a share of 0 adds nothing, known or not.
        """
        share = 1 / self.count if share is None else share
        if share == 0:
            return Term(variance=0.0, df=math.inf)
        return None if self.variance is None else Term(variance=self.variance * share, df=self.df)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One independent contribution to a variance; a declared one has infinite `df`."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value on the log scale that is normal about the truth, with estimated variance."""

    value: float
    parts: tuple[Term, ...] | None
    """Independent contributions to the squared standard error; None where it is unknown, and
    then nothing can be tested."""

    @property
    def variance(self) -> float | None:
        """The squared standard error."""
        return None if self.parts is None else math.fsum(part.variance for part in self.parts)

    def half_width(self, probability: float) -> float | None:
        """The most by which the truth is exceeded with this one-sided probability, from 0.5 on.

        Each part has its own quantile of Student's t, and they are added in squares (Howe
        1974). Degrees of freedom after Welch and Satterthwaite for all parts together would be
        those of the larger part. Where few runs happen to agree, that is the declared
        deviation between allocations, which has any number of them: simulated, identical runs
        of 5% deviation, 2 against 2, were then called slower in 1.2% of all cases.
        """
        if self.parts is None:
            return None
        return math.sqrt(
            math.fsum(part.variance * t_quantile(probability, part.df) ** 2 for part in self.parts)
        )

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The two-sided interval, or None where the variance is unknown."""
        half = self.half_width((1 + confidence) / 2)
        return None if half is None else (self.value - half, self.value + half)

    def lower_bound(self, confidence: float = CONFIDENCE) -> float | None:
        """The one-sided bound that the truth exceeds with this confidence."""
        half = self.half_width(confidence)
        return None if half is None else self.value - half

    def p_below_zero(self) -> float | None:
        """The one-sided p for "the truth is below 0", or None where the variance is unknown.

        Between `RELEVANT` and 1 - `RELEVANT` it may be nearer to 0.5 than the truth.
        """
        if self.parts is None:
            return None
        tail = _tail(abs(self.value), self.parts)
        return tail if self.value < 0 else 1 - tail

    def p_above_zero(self) -> float | None:
        """The one-sided p for "the truth is above 0", or None where the variance is unknown."""
        return replace(self, value=-self.value).p_below_zero()

    def exponential(self) -> Estimate:
        """The estimate of what the value is the logarithm of: a time, a throughput or a ratio."""
        interval = self.interval()
        if interval is None:
            return Estimate(value=exponential(self.value))
        low, high = interval
        return Estimate(value=exponential(self.value), low=exponential(low), high=exponential(high))

    def relative_change(self) -> Estimate:
        """The same as a relative change: 0.02 is 2% more."""
        factor = self.exponential()
        return Estimate(
            value=factor.value - 1,
            low=None if factor.low is None else factor.low - 1,
            high=None if factor.high is None else factor.high - 1,
        )


def exponential(exponent: float) -> float:
    """The exponential function, kept away from overflow and from 0.

    An interval from two wildly different runs is that wide; it must stay a number.
    """
    return math.exp(max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)))


def log_sample(logs: Sequence[float]) -> Sample:
    """The sample of these (at least one) logarithms; a single one has no variance."""
    return grouped_log_sample([logs])


def grouped_log_sample(groups: Iterable[Sequence[float]]) -> Sample:
    """The sample of all values, with the variance *within* the groups, pooled.

    Values of one group share something (a night, an allocation) that the variance of a
    single run must not contain.
    """
    filled = [group for group in groups if group]
    values = [value for group in filled for value in group]
    squares = math.fsum(
        (value - statistics.fmean(group)) ** 2 for group in filled for value in group
    )
    df = len(values) - len(filled)
    return Sample(
        mean=statistics.fmean(values),
        variance=squares / df if df else None,
        count=len(values),
        df=df,
    )


def welch_term(terms: Iterable[Term]) -> Term:
    """Several contributions of the same kind as one, with Welch-Satterthwaite `df`."""
    known = tuple(terms)
    total = math.fsum(term.variance for term in known)
    weight = math.fsum(term.variance**2 / term.df for term in known if term.df)
    return Term(variance=total, df=total**2 / weight if weight > 0 else math.inf)


def difference(value: float, terms: Iterable[Term | None]) -> Difference:
    """A value whose variance is the sum of the terms, all of one kind, as after Welch.

    A term of None is an unknown contribution, and makes the whole variance unknown.
    """
    known = _all_known(terms)
    return Difference(value=value, parts=None if known is None else (welch_term(known),))


def difference_of_levels(value: float, levels: Iterable[Term | None]) -> Difference:
    """A value whose variance is the sum of different levels: runs, allocations.

    A level of None is an unknown contribution, and makes the whole variance unknown.
    """
    known = _all_known(levels)
    if known is None:
        return Difference(value=value, parts=None)
    varying = tuple(level for level in known if level.variance > 0)
    return Difference(value=value, parts=varying or known[:1])


def _all_known(terms: Iterable[Term | None]) -> tuple[Term, ...] | None:
    given = tuple(terms)
    known = tuple(term for term in given if term is not None)
    return known if len(known) == len(given) else None


@lru_cache(maxsize=4096)
def _tail(distance: float, parts: tuple[Term, ...]) -> float:
    """The one-sided probability at which `Difference.half_width` is the distance.

    Above `RELEVANT`, an upper bound of it.
    """
    variance = math.fsum(part.variance for part in parts)
    if variance == 0:
        return 0.5 if distance == 0 else 0.0
    first, *others = sorted(parts, key=lambda part: part.df)
    ratio = distance / math.sqrt(variance)
    largest = t_probability(-ratio, first.df)
    smallest = t_probability(-ratio, math.inf)
    if not others or smallest > RELEVANT or largest < _SMALLEST_TAIL:
        return largest
    # Sought is the quantile of the part with the fewest degrees of freedom. It lies between
    # that of all parts with so few and that of this part alone.
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
        # The Illinois variant of false position: the end that stays counts half.
        if excess < 0:
            low, below, above = at, excess, above / 2
        else:
            high, above, below = at, excess, below / 2
    return t_probability(-math.exp(at), first.df)


def _log_half_width(log_quantile: float, first: Term, others: Sequence[Term]) -> float:
    """Of the half width where the first part has this quantile: nearly straight."""
    quantile = math.exp(log_quantile)
    tail = t_probability(-quantile, first.df)
    squares = first.variance * quantile**2 + math.fsum(
        part.variance * max(t_quantile(tail, part.df), -math.exp(_FURTHEST)) ** 2 for part in others
    )
    return math.log(squares) / 2
