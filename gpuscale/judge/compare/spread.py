"""Spread at three levels: windows within a run (reduced to medians), runs and allocations."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuscale.analysis.statistics.estimates import (
    EXCLUDED,
    Difference,
    Moderated,
    Sample,
    Term,
    difference,
    difference_of_levels,
    exponential,
    grouped_log_sample,
    log_sample,
    moderated_term,
    not_above,
    not_below,
    priors_of,
)
from gpuscale.analysis.statistics.levels import outlying_allocations
from gpuscale.records import Statement

_Row = TypeVar("_Row")

MINIMUM_ALLOCATIONS = 4
"""Minimum number of allocations in a baseline for estimating the spread between them."""

DECLARED_DF = 2.0
"""Weight of the declared deviation as the prior of the estimated one, in degrees of freedom.

Four allocations alone estimate their spread so poorly that a loss of 5% was found in only 15% of
nightly runs. With more than 2 degrees of freedom, false alarms exceed 1% if allocations differ by
three times the declared deviation.
"""


_FAR_NOISIER = 4.0
"""If other rows are this many times as noisy, they are the reason given for the uncertainty."""
EXCLUDED_BY_NIGHTS = 0.01
"""Value of `EXCLUDED` for allocations of one run; larger ones cause too many false alarms."""

_WIDE = 10.0
"""A row whose variance is this many times that of the median row gets less weight."""
_SMALLEST_SPREAD = 1e-8
"""Smallest variance assumed for a row; no measurement is more precise than 0.01%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """The judged values of one row on one side of a comparison, by allocation."""

    values: Mapping[str, tuple[float, ...]]
    """Logarithms of the judged values, such as step times, by allocation; at least one value."""
    moderated: Moderated
    """Mean of all runs, and their variance within an allocation, moderated by other samples."""
    holds_allocations: bool = False
    """True if the variance also includes effects of allocations that are specific to this row."""

    @property
    def mean(self) -> float:
        """The mean of all runs."""
        return self.moderated.sample.mean

    @property
    def count(self) -> int:
        """The number of runs, including hypothetical further runs."""
        return self.moderated.sample.count

    @property
    def own_variance(self) -> float:
        """The variance between the sample's own runs; 0 if they are too few."""
        return self.moderated.sample.variance or 0.0

    @property
    def prior_variance(self) -> float:
        """The variance between runs as estimated from the other samples; 0 if unknown."""
        return 0.0 if self.moderated.prior is None else self.moderated.prior.variance

    @property
    def allocation_share(self) -> float:
        """Fraction of the variance between allocations that remains in the mean of all runs.

        With A allocations that have equally many runs, it is 1/A.
        """
        total = sum(len(values) for values in self.values.values())
        return math.fsum((len(values) / total) ** 2 for values in self.values.values())

    def with_further_runs(self, count: int) -> "RunSample":
        """Return the sample with further runs in the same allocation, assuming an unchanged mean.

        These runs are assumed to have the moderated variance, which therefore does not change
        either.
        """
        sample, of_run = self.moderated.sample, self.moderated.variance
        if count == 0 or of_run is None:
            return self
        df = sample.df + count
        squares = (sample.variance or 0.0) * sample.df + of_run * count
        grown = replace(sample, variance=squares / df, count=sample.count + count, df=df)
        return replace(self, moderated=replace(self.moderated, sample=grown))


def moderated_samples(
    baseline: Mapping[_Row, Mapping[str, tuple[float, ...]]],
    current: Mapping[_Row, Mapping[str, tuple[float, ...]]],
) -> tuple[dict[_Row, RunSample], dict[_Row, RunSample]]:
    """Build the samples of both sides of a whole comparison, by row.

    Each variance is shrunk towards that of all other samples. This target is raised to the variance
    of the same row on the other side if that is larger. If a row's own runs rule out the variance
    of the other rows, only the row's two sides moderate each other.
    """
    sides = [*baseline.values(), *current.values()]
    samples = [grouped_log_sample(values.values()) for values in sides]
    beside = samples
    hold_allocations = all(sample.variance is None for sample in samples)
    if hold_allocations:
        # One run a night. With several rows, enough nights separate the spread of runs from that
        # of nights; too few show only both together, and the declared deviation is added.
        of_baseline = zip(baseline.values(), samples, strict=False)
        beside = [*_runs_beside_others([*of_baseline]), *samples[len(baseline) :]]
        for i, values in enumerate(sides):
            if len(values) < MINIMUM_ALLOCATIONS:
                samples[i] = beside[i] = log_sample([*_only_runs(values)])
    priors = priors_of(beside)
    # Runs of one night differ by no more than runs of different nights.
    own = [log_sample([*_only_runs(values)]) for values in sides] if hold_allocations else samples
    excluded = EXCLUDED_BY_NIGHTS if hold_allocations else EXCLUDED
    then = {key: i for i, key in enumerate(baseline)}
    for i, key in enumerate(current, start=len(baseline)):
        if key in then:
            other = then[key]
            lone = priors_of((samples[i], samples[other]))
            for at, without_others in zip((i, other), lone, strict=True):
                lowered = not_above(priors[at], own[i], own[other], excluded=excluded)
                is_alone = lowered != priors[at] and None not in lone
                priors[at] = without_others if is_alone else lowered
            priors[i] = not_below(priors[i], samples[i], samples[other])
            priors[other] = not_below(priors[other], samples[other], samples[i])
    moderated = [
        RunSample(
            values=values,
            moderated=Moderated(sample=own, prior=prior),
            holds_allocations=hold_allocations,
        )
        for values, own, prior in zip(sides, samples, priors, strict=True)
    ]
    of_current = moderated[len(baseline) :]
    return dict(zip(baseline, moderated, strict=False)), dict(zip(current, of_current, strict=True))


def _runs_beside_others(
    rows: Sequence[tuple[Mapping[str, tuple[float, ...]], Sample]],
) -> list[Sample]:
    """Return each row's sample without the variance that all rows share.

    Every allocation has one run. The residuals contain the deviation of runs and the effect of
    allocations on single rows (Searle, Casella and McCulloch 1992, section 4.3). The effect of an
    allocation on a row is estimated from the other rows, each weighted by its precision, so that an
    outlier in one row hardly affects other rows.
    """
    spreads = [log_sample([*_only_runs(values)]).variance or 0.0 for values, _ in rows]
    wide = max(_WIDE * statistics.median(spreads or [0.0]), _SMALLEST_SPREAD)
    weights = [1 / max(spread, wide) for spread in spreads]
    apart: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for (values, sample), weight in zip(rows, weights, strict=True):
        for name, (run,) in values.items():
            apart[name].append((weight, weight**2, weight * (run - sample.mean)))
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
    for (values, sample), weight in zip(rows, weights, strict=True):
        residuals = {
            name: residual(run - sample.mean, weight, name)
            for name, (run,) in values.items()
            if len(apart[name]) > 1
        }
        far = outlying_allocations(residuals)
        usual = log_sample([value for name, value in residuals.items() if name not in far] or [0.0])
        residual_samples.append(replace(sample, variance=usual.variance, df=usual.df))
    return residual_samples


def _only_runs(values: Mapping[str, tuple[float, ...]]) -> Iterator[float]:
    """Yield the single run of each allocation."""
    return (run for (run,) in values.values())


@dataclass(frozen=True, slots=True)
class SideSample:
    """The runs of one side (baseline or results) that a judged quantity is computed from."""

    ends: tuple[RunSample, ...]
    """Samples on n GPUs and, for a speedup, on 1 GPU."""

    @property
    def value(self) -> float:
        """The logarithm of T(n), of T(n)/T(1), or another judged value."""
        return _difference([end.mean for end in self.ends])

    @property
    def common_allocations(self) -> tuple[str, ...]:
        """The allocations that contribute runs to every sample in `ends`."""
        first, *others = (end.values for end in self.ends)
        return tuple(name for name in first if all(name in values for values in others))

    @property
    def usual_allocations(self) -> tuple[str, ...]:
        """The allocations that are in every sample of `ends` and whose values are not outliers."""
        values = {name: self.in_allocation(name) for name in self.common_allocations}
        outlying = outlying_allocations(values)
        return tuple(name for name in values if name not in outlying)

    @property
    def usual_means(self) -> Sample:
        """Sample of the values in the usual allocations; gains may be relative to its mean."""
        return log_sample([self.in_allocation(name) for name in self.usual_allocations])

    def own_estimate(self, by_allocation: bool = False) -> Difference:
        """Estimate the value from this side's runs or, optionally, from its usual allocations."""
        if by_allocation:
            means = self.usual_means
            return difference(means.mean, [means.term()])
        ends = ([run for runs in end.values.values() for run in runs] for end in self.ends)
        return difference(self.value, [log_sample(runs).term() for runs in ends])

    @property
    def allocation_share(self) -> float:
        """Fraction of the variance between allocations that remains in the value."""
        return max(end.allocation_share for end in self.ends)

    @property
    def variance_of_means(self) -> float:
        """The variance of the value due to differences between runs."""
        return math.fsum((end.moderated.variance or 0.0) / end.count for end in self.ends)

    def with_further_runs(self, count: int) -> "SideSample":
        """Return the side as if each sample in `ends` had this many further runs."""
        return SideSample(tuple(end.with_further_runs(count) for end in self.ends))

    def in_allocation(self, name: str) -> float:
        """Return the value in this allocation alone."""
        return _difference([statistics.fmean(end.values[name]) for end in self.ends])

    def declared_variance(self, deviation: float, deviation_apart: float) -> float:
        """Return the variance of the value due to the declared deviation between allocations."""
        if self.common_allocations:
            return deviation**2 * self.allocation_share
        # Samples from different nodes share nothing: each has the full deviation of a time.
        return deviation_apart**2 * math.fsum(end.allocation_share for end in self.ends)


def _difference(logs: Sequence[float]) -> float:
    """Return the first logarithm, minus the second if there are two."""
    return logs[0] - math.fsum(logs[1:])


def estimates_allocations(baseline: SideSample, current: SideSample) -> bool:
    """True if the spread between allocations is estimated from the baseline rather than declared.

    Gains are then relative to the mean of the baseline's usual allocations, otherwise to the mean
    of all its runs.
    """
    enough = len(baseline.common_allocations) >= MINIMUM_ALLOCATIONS
    return enough and bool(current.common_allocations)


def largest_spread(
    baseline: SideSample, current: SideSample, gain: Difference, *, further_runs: int = 0
) -> Statement:
    """Find the largest source of a gain's variance, and its standard deviation.

    `gain` already includes the further runs of the current side. A side is named only for the
    spread of its own runs, not for variance added by moderation; if most is added, other rows are
    named.
    """
    of_current = math.fsum(end.own_variance / (end.count + further_runs) for end in current.ends)
    of_baseline = math.fsum(end.own_variance / end.count for end in baseline.ends)
    code, side, most = "runs_differ", current, of_current
    shares = baseline.allocation_share + current.allocation_share
    is_estimated = estimates_allocations(baseline, current)
    # Means of allocations include the spread of the baseline's runs.
    if of_baseline > of_current and not is_estimated:
        code, side, most = "baseline_runs_differ", baseline, of_baseline
    if is_estimated:
        between = (baseline.usual_means.variance or 0.0) * shares
    else:
        grown = current.with_further_runs(further_runs)
        between = (gain.variance or 0.0) - (baseline.variance_of_means + grown.variance_of_means)
    variance = max(end.own_variance for end in side.ends)
    if between > most:
        code, variance, most = "nights_differ", between / shares, between
    ends = [(end, end.count) for end in baseline.ends]
    ends += [(end, end.count + further_runs) for end in current.ends]
    others = max(end.prior_variance for end, _ in ends)
    of_others = math.fsum(end.moderated.prior_part / count for end, count in ends)
    if of_others > most and others > _FAR_NOISIER * max(end.own_variance for end, _ in ends):
        code, variance = "other_rows_differ", others
    return Statement.of(code, deviation=exponential(math.sqrt(variance)) - 1)


def gain_of(
    baseline: SideSample, current: SideSample, *, deviation: float, deviation_apart: float = 0.0
) -> Difference:
    """Estimate the gain of the current side over the baseline (a logarithm if the values are).

    Its variance, with A allocations and R runs on each side, is that between allocations times
    1/A_baseline + 1/A_current, plus that between runs times 1/R_baseline + 1/R_current. The
    variance between allocations is declared or, if the baseline has enough of them, estimated with
    the declared one as prior. `deviation` is the declared standard deviation of the value, and
    `deviation_apart` that of each term of a ratio whose terms come from different allocations.
    """
    if estimates_allocations(baseline, current):
        return _gain_over_allocations(baseline, current, deviation)
    declared = math.fsum(
        side.declared_variance(deviation, deviation_apart) for side in (baseline, current)
    )
    runs = moderated_term((end.moderated, 1 / end.count) for end in (*baseline.ends, *current.ends))
    return difference_of_levels(
        baseline.value - current.value, [runs, Term(variance=declared, df=math.inf)]
    )


def _gain_over_allocations(
    baseline: SideSample, current: SideSample, deviation: float
) -> Difference:
    names = baseline.usual_allocations
    share = current.allocation_share
    means = baseline.usual_means
    of_runs = math.fsum(
        (end.moderated.variance or 0.0) * _mean_share(end, names) for end in baseline.ends
    )
    declared = deviation**2
    # The declared deviation covers the part of allocations in the residuals.
    of_one = max(declared, of_runs) if baseline.ends[0].holds_allocations else declared + of_runs
    between = Moderated(sample=means, prior=Term(variance=of_one, df=DECLARED_DF))
    of_allocations = Term(
        variance=(between.own_part + between.prior_part) * (1 / len(names) + share),
        df=means.df + DECLARED_DF,
    )
    # Means of allocations include the spread of their runs. Tonight's runs add more spread if they
    # are fewer than the runs of a baseline allocation.
    extra = moderated_term(
        (now.moderated, max(0.0, 1 / now.count - share * _mean_share(before, names)))
        for before, now in zip(baseline.ends, current.ends, strict=True)
    )
    return difference_of_levels(means.mean - current.value, [of_allocations, extra])


def _mean_share(end: RunSample, names: Sequence[str]) -> float:
    """Return the mean fraction of the variance between runs left in an allocation's mean."""
    return statistics.fmean(1 / len(end.values[name]) for name in names)
