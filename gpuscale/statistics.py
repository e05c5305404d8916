"""Means of per-run logarithms, differences of such means, and what may be said of them.

Everything here is on logarithms of step times, one number a run: steps of one run are not
independent samples, runs are. A difference of logarithms is a relative change.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from scipy import special

from gpuscale.records.estimate import Estimate

CONFIDENCE = 0.95
SIGNIFICANCE = 0.01
POWER = 0.95
PRIOR_DF = 3.0
"""How many degrees of freedom the deviation of the other entries is worth, at most."""
FURTHER_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
"""The numbers of further runs that are tried on an inconclusive case."""

_LARGEST_EXPONENT = 600.0


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
        """What the sample adds to the variance of a difference: `variance * share`.

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
class Prior:
    """What other samples say of the variance of one more sample."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value on the log scale that is normal about the truth, with estimated variance."""

    value: float
    variance: float | None
    """Squared standard error; None where it is unknown, and then nothing can be tested."""
    df: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The two-sided interval by Student's t, or None where the variance is unknown."""
        if self.variance is None:
            return None
        half = t_quantile((1 + confidence) / 2, self.df) * math.sqrt(self.variance)
        return self.value - half, self.value + half

    def lower_bound(self, confidence: float = CONFIDENCE) -> float | None:
        """The one-sided bound that the truth exceeds with this confidence."""
        if self.variance is None:
            return None
        return self.value - t_quantile(confidence, self.df) * math.sqrt(self.variance)

    def p_below_zero(self) -> float | None:
        """The one-sided p for "the truth is below 0", or None where the variance is unknown."""
        if self.variance is None:
            return None
        if self.variance == 0:
            return 0.5 if self.value == 0 else float(self.value > 0)
        return t_probability(self.value / math.sqrt(self.variance), self.df)

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


def t_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t; the normal one where `df` is infinite."""
    if math.isinf(df):
        return float(special.ndtri(probability))
    return float(special.stdtrit(df, probability))


def t_probability(quantile: float, df: float) -> float:
    """The probability that Student's t stays below; the normal one where `df` is infinite."""
    if math.isinf(df):
        return float(special.ndtr(quantile))
    return float(special.stdtr(df, quantile))


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


def prior_of(others: Iterable[Sample]) -> Prior | None:
    """The median deviation of the other samples, as a prior for one more; None without any.

    The sample under judgement must not be among the others: shrinking a variance towards
    itself only adds degrees of freedom that nobody measured. The median of a chi-squared
    variable lies below its mean (by 31% at 2 degrees of freedom), so each deviation is first
    made median-unbiased. The prior is worth 3 degrees of freedom, or all that the others
    have together.
    """
    known = [(other.variance, other.df) for other in others if other.variance is not None]
    if not known:
        return None
    deviations = [math.sqrt(variance / _chi_squared_median(df)) for variance, df in known]
    return Prior(
        variance=statistics.median(deviations) ** 2,
        df=min(PRIOR_DF, sum(df for _, df in known)),
    )


@cache
def _chi_squared_median(df: float) -> float:
    """Median of a chi-squared variable over its mean."""
    return float(special.chdtri(df, 0.5)) / df


def moderated(sample: Sample, prior: Prior | None) -> Sample:
    """The sample with its variance drawn towards the prior, which makes few runs usable.

    s² = (d0·s0² + df·s²) / (d0 + df), with d0 + df degrees of freedom.
    """
    if prior is None:
        return sample
    own = 0.0 if sample.variance is None else sample.df * sample.variance
    df = prior.df + sample.df
    return replace(sample, variance=(prior.df * prior.variance + own) / df, df=df)


def difference(value: float, terms: Iterable[Term | None]) -> Difference:
    """A value whose variance is the sum of the terms, with Welch-Satterthwaite `df`.

    A term of None is an unknown contribution, and makes the whole variance unknown.
    """
    known: list[Term] = []
    for term in terms:
        if term is None:
            return Difference(value=value, variance=None, df=0)
        known.append(term)
    total = math.fsum(term.variance for term in known)
    weight = math.fsum(term.variance**2 / term.df for term in known if term.df)
    return Difference(value=value, variance=total, df=total**2 / weight if weight > 0 else math.inf)


def benjamini_hochberg(probabilities: Sequence[float]) -> tuple[float, ...]:
    """The adjusted p of each test of a family, in the order given."""
    count = len(probabilities)
    adjusted = [0.0] * count
    smallest = 1.0
    descending = sorted(range(count), key=lambda i: probabilities[i], reverse=True)
    for rank, index in zip(range(count, 0, -1), descending, strict=True):
        smallest = min(smallest, probabilities[index] * count / rank)
        adjusted[index] = smallest
    return tuple(adjusted)


def detectable_loss(
    test: Difference, *, significance: float = SIGNIFICANCE, margin: float = 0.0
) -> float | None:
    """The smallest relative loss that a test of this standard error finds 19 times in 20.

    Found means: one-sided p below `significance`, and an observed loss above `margin`.
    None where the standard error is unknown.
    """
    if test.variance is None:
        return None
    deviation = math.sqrt(test.variance)
    power = t_quantile(POWER, test.df)
    needed = max(t_quantile(1 - significance, test.df) * deviation, -math.log1p(-margin))
    return 1 - exponential(-(needed + power * deviation))
