"""Variances of few runs, made usable by what the other samples of a comparison tell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuscale.statistics.distributions import chi_squared_median
from gpuscale.statistics.estimates import Sample, Term, welch_term

PRIOR_DF = 3.0
"""The most degrees of freedom that the deviation of the other entries is worth."""
MEDIAN_EFFICIENCY = 0.37
"""Of normal values, a median deviation tells as much as the variance of 37% of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The variance of one more sample, as the other samples tell it."""

    variance: float
    df: float


def priors_of(samples: Sequence[Sample]) -> list[Prior | None]:
    """For each sample the median deviation of all the others; None where no other has any.

    The sample under judgement must not be among the others: shrinking a variance towards
    itself only adds degrees of freedom that nobody measured. The median of a chi-squared
    variable lies below its mean (by 31% at 2 degrees of freedom), so each deviation is first
    made median-unbiased. The prior is worth 3 degrees of freedom, or what a median leaves of
    those that the others have together.
    """
    known = {
        i: math.sqrt(variance)
        for i, sample in enumerate(samples)
        if (variance := _median_unbiased(sample)) is not None
    }
    by_size = sorted(known, key=lambda i: known[i])
    position = {i: rank for rank, i in enumerate(by_size)}
    ordered = [known[i] for i in by_size]
    all_df = math.fsum(samples[i].df for i in known)
    priors: list[Prior | None] = []
    for i, sample in enumerate(samples):
        left_out = position.get(i, len(ordered))
        others_df = all_df - (sample.df if i in known else 0.0)
        median = _median_without(ordered, left_out)
        priors.append(
            None
            if median is None
            else Prior(variance=median**2, df=min(PRIOR_DF, MEDIAN_EFFICIENCY * others_df))
        )
    return priors


def not_below(prior: Prior | None, own: Sample, other_side: Sample) -> Prior | None:
    """The prior, raised to the variance that the same row has on the other side, if larger.

    The other side must know it from as many runs: many quiet runs are not doubted for the sake
    of a few noisy ones.

    The median supposes that all rows are equally noisy. Where one is not, a lucky draw of few
    runs would be believed: simulated, 5% deviation of T(4) beside 0.2% of T(1), 3 identical
    runs against 6, was called slower in up to 3.5% of all cases.
    """
    variance = _median_unbiased(other_side)
    if prior is None or variance is None or other_side.df < own.df:
        return prior
    if variance <= prior.variance:
        return prior
    return replace(prior, variance=variance)


def _median_unbiased(sample: Sample) -> float | None:
    if sample.variance is None:
        return None
    return sample.variance * sample.df / chi_squared_median(sample.df)


def _median_without(ordered: Sequence[float], left_out: int) -> float | None:
    """The median of ascending numbers without the one at a position, where there is one."""
    count = len(ordered) - (left_out < len(ordered))
    if count == 0:
        return None
    middles = ((count - 1) // 2, count // 2)
    low, high = (ordered[at + (at >= left_out)] for at in middles)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Moderated:
    """A sample whose variance is drawn towards that of others, which makes few runs usable.

    s² = (d0·s0² + df·s²) / (d0 + df), where d0 and s0² are the prior's.
    """

    sample: Sample
    prior: Prior | None

    @property
    def prior_part(self) -> float:
        """The part of the variance that the prior adds; 0 without one."""
        if self.prior is None:
            return 0.0
        return self.prior.variance * self.prior.df / (self.prior.df + self.sample.df)

    @property
    def own_part(self) -> float:
        """The part of the variance that the sample adds; 0 where it tells no spread."""
        if self.sample.variance is None:
            return 0.0
        prior_df = 0.0 if self.prior is None else self.prior.df
        return self.sample.variance * self.sample.df / (prior_df + self.sample.df)

    @property
    def variance(self) -> float | None:
        """Of one value; None where neither the sample nor others tell it."""
        if self.sample.variance is None and self.prior is None:
            return None
        return self.own_part + self.prior_part


def moderated_term(parts: Iterable[tuple[Moderated, float]]) -> Term | None:
    """The part of the variance of a difference that several moderated samples add.

    Their priors are the same runs but for one sample, so the priors' parts are one
    contribution. Counted as independent ones they would promise degrees of freedom that nobody
    measured: simulated, identical runs of one entry, 2 against 2, were then told apart at
    p < 0.01 in 2.3% of all cases.

    Args:
        parts: each sample with its share, 1 / `count` where its mean goes into the difference.
    """
    used = [(sample, share) for sample, share in parts if share]
    if any(sample.variance is None for sample, _ in used):
        return None
    own = [Term(variance=each.own_part * share, df=each.sample.df) for each, share in used]
    prior = math.fsum(each.prior_part * share for each, share in used)
    prior_df = min((each.prior.df for each, _ in used if each.prior is not None), default=math.inf)
    return welch_term([*own, Term(variance=prior, df=prior_df)])
