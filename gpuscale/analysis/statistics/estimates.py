"""Means of log step times, the variances of these means, and differences between them.

Each run contributes one number, since runs are independent samples but the steps of a run are not.
A difference of logarithms is a relative change.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuscale.analysis.statistics.distributions import (
    chi_squared_median,
    normal_quantile,
    t_probability,
    t_quantile,
)
from gpuscale.records import Estimate

CONFIDENCE = 0.95
SIGNIFICANCE = 0.01
RELEVANT = 0.1
"""One-sided p-values above this are only approximate, since no decision depends on them."""
FURTHER_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
"""Candidates for the number of further runs that would settle an inconclusive row."""

_PRIOR_DF = 3.0
"""Largest weight, in degrees of freedom, of a prior derived from other entries."""
_MEDIAN_EFFICIENCY = 0.37
"""Degrees of freedom of a median of deviations, as a fraction of those of a pooled variance."""
EXCLUDED = 0.1
"""Probability of wrongly lowering the prior of a row that is as noisy as the other rows."""
_LARGEST_EXPONENT = 600.0
_SMALLEST_TAIL = 1e-12
_FURTHEST = 230.0
"""Logarithm of the largest quantile that is tried; the quantile's square is still finite."""
_MOST_STEPS = 60
_EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One independent contribution to a variance; a declared variance has infinite `df`."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Mean and spread of `count` logarithms."""

    mean: float
    variance: float | None
    """Variance of one value, not of the mean; None if unknown."""
    count: int
    df: float
    """Degrees of freedom of `variance`; 0 if unknown."""

    def term(self) -> Term | None:
        """Return the contribution of the sample's mean to the variance of a difference."""
        if self.variance is None:
            return None
        return Term(variance=self.variance * (1 / self.count), df=self.df)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An estimated difference on the log scale, normally distributed about the true difference."""

    value: float
    parts: tuple[Term, ...] | None
    """Independent contributions to the squared standard error; None if the error is unknown."""

    @property
    def variance(self) -> float | None:
        """The squared standard error; None if unknown."""
        return None if self.parts is None else math.fsum(part.variance for part in self.parts)

    def half_width(self, probability: float) -> float | None:
        """Return half the width of the interval with a one-sided `probability` of at least 0.5.

        Each standard error is multiplied by its own quantile of Student's t, and the squares of the
        products are added (Howe 1974). Welch-Satterthwaite degrees of freedom would be dominated by
        the largest term: if a few runs happen to agree, that is a declared deviation, which has
        infinitely many. In simulations with 5% deviation, 2 runs were then called slower than 2
        equally fast runs in 1.2% of cases.
        """
        if self.parts is None:
            return None
        return math.sqrt(
            math.fsum(part.variance * t_quantile(probability, part.df) ** 2 for part in self.parts)
        )

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the two-sided confidence interval; None if the variance is unknown."""
        half = self.half_width((1 + confidence) / 2)
        return None if half is None else (self.value - half, self.value + half)

    def lower_bound(self, confidence: float = CONFIDENCE) -> float | None:
        """Return the one-sided lower confidence bound; None if the variance is unknown."""
        half = self.half_width(confidence)
        return None if half is None else self.value - half

    def p_below_zero(self) -> float | None:
        """Return the one-sided p-value for a true value below 0, approximate above `RELEVANT`."""
        if self.parts is None:
            return None
        tail = _tail(abs(self.value), self.parts)
        return tail if self.value < 0 else 1 - tail

    def p_above_zero(self) -> float | None:
        """Return the one-sided p-value for a true value above 0."""
        return (-self).p_below_zero()

    def __neg__(self) -> "Difference":
        return replace(self, value=-self.value)

    def exponential(self, confidence: float = CONFIDENCE) -> Estimate:
        """Convert the estimate and its interval from the log scale."""
        ends = [exponential(end) for end in self.interval(confidence) or ()]
        low, high = ends or (None, None)
        return Estimate(value=exponential(self.value), low=low, high=high)

    def relative_change(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the estimate as a relative change; 0.02 means 2% more."""
        factor = self.exponential(confidence)
        low, high = (None if end is None else end - 1 for end in (factor.low, factor.high))
        return Estimate(value=factor.value - 1, low=low, high=high)


def exponential(exponent: float) -> float:
    """Return e to the exponent, limited so that very wide intervals stay positive and finite."""
    return math.exp(max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)))


def log_sample(logs: Sequence[float]) -> Sample:
    """Return the sample of one or more logarithms; a single logarithm has no variance."""
    return grouped_log_sample([logs])


def grouped_log_sample(groups: Iterable[Sequence[float]]) -> Sample:
    """Return the sample of all values, with the variance pooled *within* groups (allocations)."""
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
    """Return the sum of contributions of the same kind, with Welch-Satterthwaite `df`."""
    known = tuple(terms)
    total = math.fsum(term.variance for term in known)
    weight = math.fsum(term.variance**2 / term.df for term in known if term.df)
    return Term(variance=total, df=total**2 / weight if weight > 0 else math.inf)


def difference(value: float, terms: Iterable[Term | None]) -> Difference:
    """Return a difference with Welch's degrees of freedom; its error is unknown if a term's is."""
    known = _all_known(terms)
    return Difference(value=value, parts=None if known is None else (welch_term(known),))


def difference_of_levels(value: float, levels: Iterable[Term | None]) -> Difference:
    """Return a difference with one variance term for each level, such as runs and allocations.

    The error of the difference is unknown if any term is None.
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
    """One-sided p-value of a difference of the size `distance`; approximate above `RELEVANT`."""
    variance = math.fsum(part.variance for part in parts)
    if variance == 0:
        return 0.5 if distance == 0 else 0.0
    first, *others = sorted(parts, key=lambda part: part.df)
    ratio = distance / math.sqrt(variance)
    largest = t_probability(-ratio, first.df)
    smallest = t_probability(-ratio, math.inf)
    if not others or smallest > RELEVANT or largest < _SMALLEST_TAIL:
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
        # Illinois variant of the false position method: the end that stays is halved.
        if excess < 0:
            low, below, above = at, excess, above / 2
        else:
            high, above, below = at, excess, below / 2
    return t_probability(-math.exp(at), first.df)


def _log_half_width(log_quantile: float, first: Term, others: Sequence[Term]) -> float:
    """Log half width of the interval in which the first term has this quantile."""
    quantile = math.exp(log_quantile)
    tail = t_probability(-quantile, first.df)
    squares = first.variance * quantile**2 + math.fsum(
        part.variance * max(t_quantile(tail, part.df), -math.exp(_FURTHEST)) ** 2 for part in others
    )
    return math.log(squares) / 2


def priors_of(samples: Sequence[Sample]) -> list[Term | None]:
    """Return each sample's prior variance, derived from all other samples; None if unknown.

    The prior is the squared median of the other samples' deviations. Including the sample itself
    would add degrees of freedom that were not measured. The median of a chi-squared variable is
    31% below the mean at 2 degrees of freedom, so each deviation is made median-unbiased first.
    """
    variances = [_median_unbiased(sample) for sample in samples]
    deviations = sorted(math.sqrt(variance) for variance in variances if variance is not None)
    all_df = math.fsum(sample.df for sample in samples)
    priors: list[Term | None] = []
    for sample, variance in zip(samples, variances, strict=True):
        median = _median_without(deviations, None if variance is None else math.sqrt(variance))
        df = min(_PRIOR_DF, _MEDIAN_EFFICIENCY * (all_df - sample.df))
        priors.append(None if median is None else Term(variance=median**2, df=df))
    return priors


def _median_without(ordered: Sequence[float], one: float | None) -> float | None:
    """Median of sorted numbers, leaving out `one` of them; None if no number is left."""
    # Called for each of thousands of entries: nothing is copied or sorted.
    left_out = len(ordered) if one is None else bisect_left(ordered, one)
    count = len(ordered) - (one is not None)
    if count == 0:
        return None
    low, high = (ordered[at + (at >= left_out)] for at in ((count - 1) // 2, count // 2))
    return (low + high) / 2


def not_below(prior: Term | None, own: Sample, other_side: Sample) -> Term | None:
    """Return the prior, raised to the row's variance on the other side of the comparison.

    The prior is not raised if the other side has fewer runs: a few noisy runs cast no doubt on many
    quiet ones. The prior assumes equally noisy rows; in a noisier row, a few runs that agree by
    chance would be trusted too much (docs/evidence/rates.md has the resulting error rates).
    """
    variance = _median_unbiased(other_side)
    if prior is None or variance is None or other_side.df < own.df:
        return prior
    return replace(prior, variance=max(prior.variance, variance))


def not_above(prior: Term | None, *of_row: Sample, excluded: float = EXCLUDED) -> Term | None:
    """Return the prior, lowered to an upper bound on the variance of the row's own samples.

    This protects a row with enough runs from the noise of other rows. Identical values set no
    bound, since they may have been rounded.
    """
    df = math.fsum(sample.df for sample in of_row)
    squares = math.fsum((sample.variance or 0.0) * sample.df for sample in of_row)
    if prior is None or squares == 0:
        return prior
    # The quantile of a chi-squared variable, after Wilson and Hilferty (1931).
    share = 2 / (9 * df)
    root = 1 - share + normal_quantile(excluded) * math.sqrt(share)
    if root <= 0:
        return prior
    return replace(prior, variance=min(prior.variance, squares / (df * root**3)))


def _median_unbiased(sample: Sample) -> float | None:
    if sample.variance is None:
        return None
    return sample.variance * sample.df / chi_squared_median(sample.df)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moderated:
    """A sample whose variance is shrunk towards a prior, so that a few runs are enough.

    The variance becomes (d0·s0² + df·s²) / (d0 + df); d0 and s0² belong to the prior.
    """

    sample: Sample
    prior: Term | None

    @property
    def prior_part(self) -> float:
        """The prior's contribution to the moderated variance; 0 without a prior."""
        if self.prior is None:
            return 0.0
        return self.prior.variance * self.prior.df / (self.prior.df + self.sample.df)

    @property
    def own_part(self) -> float:
        """The sample's contribution to the moderated variance; 0 if the sample has no variance."""
        if self.sample.variance is None:
            return 0.0
        prior_df = 0.0 if self.prior is None else self.prior.df
        return self.sample.variance * self.sample.df / (prior_df + self.sample.df)

    @property
    def variance(self) -> float | None:
        """Moderated variance of one value; None if sample and prior both lack a variance."""
        if self.sample.variance is None and self.prior is None:
            return None
        return self.own_part + self.prior_part


def moderated_term(parts: Iterable[tuple[Moderated, float]]) -> Term | None:
    """Return the contribution of several moderated samples to the variance of a difference.

    Each sample comes with a factor, 1 / `count` if the sample's mean enters the difference. The
    priors come from nearly the same runs, so they count as one contribution. Counted as
    independent, they would add degrees of freedom that were not measured: in simulations, 2 runs
    then differed from 2 other runs of the same entry at p < 0.01 in 2.3% of cases.

    A prior that raises the variance does not lower `df`, or noise of other rows would count twice.
    """
    used = [(sample, share) for sample, share in parts if share]
    if any(sample.variance is None for sample, _ in used):
        return None
    own = [Term(variance=sample.own_part * share, df=sample.sample.df) for sample, share in used]
    prior = math.fsum(sample.prior_part * share for sample, share in used)
    prior_df = min(
        (sample.prior.df for sample, _ in used if sample.prior is not None), default=math.inf
    )
    merged = welch_term([*own, Term(variance=prior, df=prior_df)])
    if any(sample.sample.df == 0 for sample, _ in used):
        return merged
    without_prior = welch_term(
        Term(variance=(sample.variance or 0.0) * share, df=sample.sample.df)
        for sample, share in used
    )
    return replace(merged, df=max(merged.df, without_prior.df))
