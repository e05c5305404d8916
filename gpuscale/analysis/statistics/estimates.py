"""Means of per-run logarithms, their variances, and differences of such means.

Everything here is on logarithms of step times, one number a run: steps of one run are not
independent samples, runs are. A difference of logarithms is a relative change.
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
"""A one-sided p above this is not computed exactly: no rule needs it."""
FURTHER_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
"""Numbers of further runs that are tried for an inconclusive row."""

_PRIOR_DF = 3.0
"""Largest weight, in degrees of freedom, of the deviation of the other entries."""
_MEDIAN_EFFICIENCY = 0.37
"""A median deviation is worth the variance of 37% of as many normal values."""
EXCLUDED = 0.1
"""One-sided probability that a row as noisy as its neighbours excludes their deviation."""
_LARGEST_EXPONENT = 600.0
_SMALLEST_TAIL = 1e-12
_FURTHEST = 230.0
"""Logarithm of the largest quantile that is tried; its square is still finite."""
_MOST_STEPS = 60
_EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One independent contribution to a variance; a declared one has infinite `df`."""

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
        """The contribution of the sample's mean to the variance of a difference."""
        if self.variance is None:
            return None
        return Term(variance=self.variance * (1 / self.count), df=self.df)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value on the log scale, normally distributed about the truth, with estimated variance."""

    value: float
    parts: tuple[Term, ...] | None
    """Independent contributions to the squared standard error; None if it is unknown."""

    @property
    def variance(self) -> float | None:
        """The squared standard error."""
        return None if self.parts is None else math.fsum(part.variance for part in self.parts)

    def half_width(self, probability: float) -> float | None:
        """Half of the interval around the truth with this one-sided probability, from 0.5 on.

        Each part has its own quantile of Student's t, and they are added in squares (Howe 1974).
        The degrees of freedom after Welch and Satterthwaite would be those of the larger part: if
        few runs happen to agree, those of the declared deviation, which are infinite. In
        simulations, identical runs of 5% deviation, 2 against 2, were then called slower in 1.2% of
        cases.
        """
        if self.parts is None:
            return None
        return math.sqrt(
            math.fsum(part.variance * t_quantile(probability, part.df) ** 2 for part in self.parts)
        )

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The two-sided interval; None if the variance is unknown."""
        half = self.half_width((1 + confidence) / 2)
        return None if half is None else (self.value - half, self.value + half)

    def lower_bound(self, confidence: float = CONFIDENCE) -> float | None:
        """The one-sided bound that the truth exceeds with this confidence."""
        half = self.half_width(confidence)
        return None if half is None else self.value - half

    def p_below_zero(self) -> float | None:
        """The one-sided p for "the truth is below 0"; above `RELEVANT` it is approximate."""
        if self.parts is None:
            return None
        tail = _tail(abs(self.value), self.parts)
        return tail if self.value < 0 else 1 - tail

    def p_above_zero(self) -> float | None:
        """The one-sided p for "the truth is above 0"."""
        return (-self).p_below_zero()

    def __neg__(self) -> "Difference":
        return replace(self, value=-self.value)

    def exponential(self) -> Estimate:
        """The estimate of the time, throughput or ratio whose logarithm the value is."""
        ends = [exponential(end) for end in self.interval() or ()]
        low, high = ends or (None, None)
        return Estimate(value=exponential(self.value), low=low, high=high)

    def relative_change(self) -> Estimate:
        """The estimate as a relative change: 0.02 is 2% more."""
        factor = self.exponential()
        low, high = (None if end is None else end - 1 for end in (factor.low, factor.high))
        return Estimate(value=factor.value - 1, low=low, high=high)


def exponential(exponent: float) -> float:
    """The exponential function, limited so that very wide intervals stay positive and finite."""
    return math.exp(max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)))


def log_sample(logs: Sequence[float]) -> Sample:
    """The sample of these (at least one) logarithms; a single one has no variance."""
    return grouped_log_sample([logs])


def grouped_log_sample(groups: Iterable[Sequence[float]]) -> Sample:
    """The sample of all values, with the pooled variance *within* groups such as allocations."""
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
    """The sum of several contributions of the same kind, with Welch-Satterthwaite `df`."""
    known = tuple(terms)
    total = math.fsum(term.variance for term in known)
    weight = math.fsum(term.variance**2 / term.df for term in known if term.df)
    return Term(variance=total, df=total**2 / weight if weight > 0 else math.inf)


def difference(value: float, terms: Iterable[Term | None]) -> Difference:
    """A value whose variance is the sum of terms of one kind, after Welch; None is unknown."""
    known = _all_known(terms)
    return Difference(value=value, parts=None if known is None else (welch_term(known),))


def difference_of_levels(value: float, levels: Iterable[Term | None]) -> Difference:
    """A value whose variance is the sum of levels (runs, allocations); None is unknown."""
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
    """The one-sided probability at which the half width is the distance; rough above `RELEVANT`."""
    variance = math.fsum(part.variance for part in parts)
    if variance == 0:
        return 0.5 if distance == 0 else 0.0
    first, *others = sorted(parts, key=lambda part: part.df)
    ratio = distance / math.sqrt(variance)
    largest = t_probability(-ratio, first.df)
    smallest = t_probability(-ratio, math.inf)
    if not others or smallest > RELEVANT or largest < _SMALLEST_TAIL:
        return largest
    # The result is the quantile of the part with the fewest degrees of freedom. It is between
    # the quantile of all parts with these degrees of freedom and that of this part alone.
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
    """Logarithm of the half width: nearly linear in that of the first part's quantile."""
    quantile = math.exp(log_quantile)
    tail = t_probability(-quantile, first.df)
    squares = first.variance * quantile**2 + math.fsum(
        part.variance * max(t_quantile(tail, part.df), -math.exp(_FURTHEST)) ** 2 for part in others
    )
    return math.log(squares) / 2


def priors_of(samples: Sequence[Sample]) -> list[Term | None]:
    """For each sample the variance that all the others have; None if no other has any.

    It is the median of their deviations. If the sample itself were among them, moderating it would
    add degrees of freedom that were not measured. The median of a chi-squared variable is below its
    mean (by 31% at 2 degrees of freedom), so each deviation is made median-unbiased first.
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
    """The median of ascending numbers without one of them, which may be None."""
    # Called for each of thousands of entries: nothing is copied or sorted.
    left_out = len(ordered) if one is None else bisect_left(ordered, one)
    count = len(ordered) - (one is not None)
    if count == 0:
        return None
    low, high = (ordered[at + (at >= left_out)] for at in ((count - 1) // 2, count // 2))
    return (low + high) / 2


def not_below(prior: Term | None, own: Sample, other_side: Sample) -> Term | None:
    """The prior, raised to the variance that the same row has on the other side, if larger.

    It is not raised if the other side has fewer runs: many quiet runs are not doubted for a few
    noisy ones. The median supposes that all rows are equally noisy; for a row that is not, a lucky
    draw of few runs would be believed (docs/evidence/rates.md has the rates, of `not_above` too).
    """
    variance = _median_unbiased(other_side)
    if prior is None or variance is None or other_side.df < own.df:
        return prior
    return replace(prior, variance=max(prior.variance, variance))


def not_above(prior: Term | None, *of_row: Sample, excluded: float = EXCLUDED) -> Term | None:
    """The prior, lowered to the bound that the row's own samples put on their variance.

    A row with enough runs is not moderated by far noisier neighbours. Values that are all alike may
    be rounded and set no bound.
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
    """A sample whose variance is drawn towards that of others, which makes few runs usable.

    s² = (d0·s0² + df·s²) / (d0 + df), with d0 and s0² of the prior.
    """

    sample: Sample
    prior: Term | None

    @property
    def prior_part(self) -> float:
        """The contribution of the prior to the variance; 0 without one."""
        if self.prior is None:
            return 0.0
        return self.prior.variance * self.prior.df / (self.prior.df + self.sample.df)

    @property
    def own_part(self) -> float:
        """The contribution of the sample to the variance; 0 if its own is unknown."""
        if self.sample.variance is None:
            return 0.0
        prior_df = 0.0 if self.prior is None else self.prior.df
        return self.sample.variance * self.sample.df / (prior_df + self.sample.df)

    @property
    def variance(self) -> float | None:
        """Variance of one value; None if neither the sample nor the prior has one."""
        if self.sample.variance is None and self.prior is None:
            return None
        return self.own_part + self.prior_part


def moderated_term(parts: Iterable[tuple[Moderated, float]]) -> Term | None:
    """The part of the variance of a difference that several moderated samples add.

    Their priors come from the same runs, except for one sample, and count as one contribution. As
    independent ones they would promise degrees of freedom that were not measured: in simulations,
    identical runs of one entry, 2 against 2, then differed at p < 0.01 in 2.3% of cases. Each
    sample has its share, 1 / `count` if its mean goes into the difference.

    A prior that widens takes no degrees of freedom away: noisy neighbours would count twice.
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
