"""Moderated variances: estimate the spread of a row's few runs with the help of other rows."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Sample, Term, grouped_log_sample, log_sample, welch_term
from gpuscale.analysis.outliers import usual_values
from gpuscale.analysis.probabilities import chi_squared_median, normal_quantile
from gpuscale.base.grouping import by_key

_Row = TypeVar("_Row")

MINIMUM_ALLOCATIONS = 4
"""Minimum number of allocations in a baseline for estimating the spread between them."""
_PRIOR_DF = 3.0
"""Largest weight, in degrees of freedom, of a prior derived from other entries."""
_MEDIAN_EFFICIENCY = 0.37
"""Degrees of freedom of a median of deviations, as a fraction of those of a pooled variance."""
EXCLUDED = 0.1
"""Probability that a row's true variance exceeds the bound to which the prior is limited."""
EXCLUDED_BY_NIGHTS = 0.01
"""Value of `EXCLUDED` for allocations of one run each; larger values cause many false alarms."""
_WIDE = 10.0
"""Multiple of the median row's variance above which a row gets less weight."""
_SMALLEST_SPREAD = 1e-8
"""Smallest variance assumed for a row; no measurement is more precise than 0.01%."""


class Moderated(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose variance is shrunk towards a prior, because a few runs estimate it poorly.

    The variance becomes (d0·s0² + df·s²) / (d0 + df); s0² and d0 are the prior's variance and df.
    """

    sample: Sample
    prior: Term | None

    @property
    def prior_part(self) -> float:
        """The prior's contribution to the moderated variance; 0 without a prior."""
        prior = self.prior
        return 0.0 if prior is None else prior.variance * prior.df / (prior.df + self.sample.df)

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


class RunSample(Moderated, frozen=True, kw_only=True):
    """Judged values, such as step times, of one row in the baseline or the current results."""

    values: Mapping[str, tuple[float, ...]]
    """Logarithms of the judged values, such as step times, by allocation; at least one value."""
    holds_allocations: bool = False
    """True if the variance also includes effects of allocations that are specific to this row."""

    @property
    def own_variance(self) -> float:
        """Variance between the sample's runs, without the prior; 0 if there are too few runs."""
        return self.sample.variance or 0.0

    @property
    def allocation_share(self) -> float:
        """Fraction of the variance between allocations that remains in the mean of all runs.

        With A allocations that have equally many runs, it is 1/A.
        """
        total = sum(len(values) for values in self.values.values())
        return math.fsum((len(values) / total) ** 2 for values in self.values.values())

    def with_further_runs(self, count: int) -> "RunSample":
        """Return the sample as if it had `count` more runs, with the same mean and allocations.

        These runs are assumed to have the moderated variance, which therefore stays the same.
        """
        sample, of_run = self.sample, self.variance
        if count == 0 or of_run is None:
            return self
        df = sample.df + count
        squares = (sample.variance or 0.0) * sample.df + of_run * count
        grown = replace(sample, variance=squares / df, count=sample.count + count, df=df)
        return replace(self, sample=grown)


def moderated_samples(
    baseline: Mapping[_Row, Mapping[str, tuple[float, ...]]],
    current: Mapping[_Row, Mapping[str, tuple[float, ...]]],
) -> tuple[dict[_Row, RunSample], dict[_Row, RunSample]]:
    """Return the moderated samples by row, first of the baseline, then of the current results.

    Both arguments map rows to the logarithms of their values by allocation. Each variance is shrunk
    towards a prior: the variance of all other samples or, if larger, of the row's sample on the
    other side. Other rows are ignored if the row clearly varies less than they do.
    """
    sides = [*baseline.values(), *current.values()]
    samples = [grouped_log_sample(values.values()) for values in sides]
    prior_samples = samples
    hold_allocations = all(sample.variance is None for sample in samples)
    if hold_allocations:
        # One run per night. With several rows, enough nights separate the spread between runs from
        # that between nights; too few show only their sum, and the declared deviation is added.
        prior_samples = [*_residual_samples([*baseline.values()]), *samples[len(baseline) :]]
        for i, values in enumerate(sides):
            if len(values) < MINIMUM_ALLOCATIONS:
                samples[i] = prior_samples[i] = _sample_of_nights(values)
    priors = priors_of(prior_samples)
    # Runs of one night differ by no more than runs of different nights.
    own = [*map(_sample_of_nights, sides)] if hold_allocations else samples
    excluded = EXCLUDED_BY_NIGHTS if hold_allocations else EXCLUDED
    then = {key: i for i, key in enumerate(baseline)}
    for i, key in enumerate(current, start=len(baseline)):
        if (other := then.get(key)) is not None:
            for at in (i, other):
                lowered = not_above(priors[at], own[i], own[other], excluded=excluded)
                if lowered != priors[at]:
                    lone = priors_of((samples[at], samples[i + other - at]))
                    priors[at] = lowered if None in lone else lone[0]
            priors[i] = not_below(priors[i], samples[i], samples[other])
            priors[other] = not_below(priors[other], samples[other], samples[i])
    moderated = [
        RunSample(values=values, sample=own, prior=prior, holds_allocations=hold_allocations)
        for values, own, prior in zip(sides, samples, priors, strict=True)
    ]
    of_current = moderated[len(baseline) :]
    return dict(zip(baseline, moderated, strict=False)), dict(zip(current, of_current, strict=True))


def _residual_samples(rows: Sequence[Mapping[str, tuple[float, ...]]]) -> list[Sample]:
    """Return each row's sample after removal of the allocation effects that all rows share.

    Each row must have one run per allocation. The residuals contain the variation between runs and
    the interaction of allocation and row (Searle, Casella and McCulloch 1992, section 4.3). The
    effect of an allocation on a row is estimated from the other rows, weighted by their precision.
    """
    samples = [*map(_sample_of_nights, rows)]
    spreads = [sample.variance or 0.0 for sample in samples]
    wide = max(_WIDE * statistics.median(spreads or [0.0]), _SMALLEST_SPREAD)
    weights = [1 / max(spread, wide) for spread in spreads]
    apart = by_key(
        (name, (weight, weight**2, weight * (run - sample.mean)))
        for values, sample, weight in zip(rows, samples, weights, strict=True)
        for name, (run,) in values.items()
    )
    sums = {
        name: [math.fsum(column) for column in zip(*parts, strict=True)]
        for name, parts in apart.items()
    }

    def residual(departure: float, weight: float, name: str) -> float:
        total, squares, weighted = sums[name]
        others = total - weight
        of_night = (weighted - weight * departure) / others
        return (departure - of_night) / math.sqrt(1 + (squares - weight**2) / others**2)

    residual_samples = []
    for values, sample, weight in zip(rows, samples, weights, strict=True):
        residuals = [
            residual(run - sample.mean, weight, name)
            for name, (run,) in values.items()
            if len(apart[name]) > 1
        ]
        usual = log_sample(usual_values(residuals) or [0.0])
        residual_samples.append(replace(sample, variance=usual.variance, df=usual.df))
    return residual_samples


def _sample_of_nights(values: Mapping[str, tuple[float, ...]]) -> Sample:
    return log_sample([run for (run,) in values.values()])


def priors_of(samples: Sequence[Sample]) -> list[Term | None]:
    """Return each sample's prior variance, derived from all other samples; None if unknown.

    The prior is the squared median of the other samples' deviations, each made median-unbiased.
    """
    variances = [_median_unbiased(sample) for sample in samples]
    deviations = sorted(math.sqrt(variance) for variance in variances if variance is not None)
    all_df = math.fsum(sample.df for sample in samples)
    priors: list[Term | None] = []
    for sample, variance in zip(samples, variances, strict=True):
        count = len(deviations) - (variance is not None)
        own = len(deviations) if variance is None else bisect_left(deviations, math.sqrt(variance))
        # The middle of the others, one place further up where the own deviation stands below.
        middle = (deviations[at + (at >= own)] for at in ((count - 1) // 2, count // 2) if count)
        df = min(_PRIOR_DF, _MEDIAN_EFFICIENCY * (all_df - sample.df))
        priors.append(Term(variance=(sum(middle) / 2) ** 2, df=df) if count else None)
    return priors


def not_below(prior: Term | None, own: Sample, other_side: Sample) -> Term | None:
    """Return the prior, raised if the row's variance on the other side of the comparison is larger.

    The prior assumes equally noisy rows; in a noisier row, a few runs that agree by chance would be
    trusted too much. If the other side has fewer runs, the prior is returned as it is: a few noisy
    runs cast no doubt on many quiet ones.
    """
    variance = _median_unbiased(other_side)
    if prior is None or variance is None or other_side.df < own.df or variance <= prior.variance:
        return prior
    return replace(prior, variance=variance)


def not_above(prior: Term | None, *of_row: Sample, excluded: float = EXCLUDED) -> Term | None:
    """Return the prior, limited to an upper confidence bound on the row's own variance.

    The true variance exceeds that bound with probability `excluded`. Identical values set no bound.
    """
    df = math.fsum(sample.df for sample in of_row)
    squares = math.fsum((sample.variance or 0.0) * sample.df for sample in of_row)
    if prior is None or squares == 0:
        return prior
    # The quantile of a chi-squared variable, after Wilson and Hilferty (1931).
    share = 2 / (9 * df)
    root = 1 - share + normal_quantile(excluded) * math.sqrt(share)
    if root <= 0 or prior.variance <= (bound := squares / (df * root**3)):
        return prior
    return replace(prior, variance=bound)


def _median_unbiased(sample: Sample) -> float | None:
    if sample.variance is None:
        return None
    return sample.variance * sample.df / chi_squared_median(sample.df)


def moderated_term(parts: Iterable[tuple[Moderated, float]]) -> Term | None:
    """Return the variance of a difference between moderated samples; None if a variance is unknown.

    Each sample comes with a factor for its variance, such as 1 / `sample.count` for its mean. The
    priors come from nearly the same runs, so they are not independent and count as a single term
    with the fewest degrees of freedom of any prior. Priors never reduce the result's `df`, because
    the noise of other rows already raises the variance.
    """
    used = [(sample, share) for sample, share in parts if share]
    if any(sample.sample.variance is None and sample.prior is None for sample, _ in used):
        return None
    own = [Term(variance=sample.own_part * share, df=sample.sample.df) for sample, share in used]
    prior = math.fsum(sample.prior_part * share for sample, share in used)
    dfs = (sample.prior.df for sample, _ in used if sample.prior is not None)
    merged = welch_term([*own, Term(variance=prior, df=min(dfs, default=math.inf))])
    if any(sample.sample.df == 0 for sample, _ in used):
        return merged
    without_prior = welch_term(
        Term(variance=(sample.variance or 0.0) * share, df=sample.sample.df)
        for sample, share in used
    )
    return replace(merged, df=max(merged.df, without_prior.df))
