"""Estimate gains over a baseline, and their variance between runs and between jobs or nights."""

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import (
    Difference,
    Term,
    difference,
    difference_of_levels,
    exponential,
    log_sample,
)
from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS, Moderated, RunSample, moderated_term
from gpuscale.analysis.outliers import outlying_allocations
from gpuscale.records import Facts, Statement

DECLARED_DF = 2.0
"""Weight, in degrees of freedom, of the declared deviation between allocations as a prior. With a
larger weight, false alarms exceed 1% if allocations differ by three times that deviation."""
_LARGE_DEVIATION = 0.03
"""Deviation between allocations that is three times that of most machines."""
_FAR_NOISIER = 4.0
"""Ratio of variances from which on the larger has another source, such as other rows or nights."""


class SideSample(msgspec.Struct, frozen=True):
    """The runs of one side (baseline or results) that a judged quantity is computed from."""

    samples: tuple[RunSample, ...]
    """Samples on n GPUs and, for a speedup, on 1 GPU."""
    is_of_nights: bool = False
    """True if a history tells changes of level between the allocations from their spread."""

    @property
    def on_n_gpus(self) -> "SideSample":
        """A copy with only the sample on n GPUs, to judge the step time T(n)."""
        return SideSample(self.samples[:1], self.is_of_nights)

    @property
    def on_1_gpu(self) -> "SideSample":
        """A copy with only the sample on 1 GPU, to judge the reference T(1)."""
        return SideSample(self.samples[1:], self.is_of_nights)

    @property
    def value(self) -> float:
        """The judged value: log T(n), log(T(n)/T(1)), or a metric (as a log or a fraction)."""
        return _difference([runs.sample.mean for runs in self.samples])

    @property
    def common_allocations(self) -> tuple[str, ...]:
        """The allocations that contribute runs to every sample."""
        first, *others = (sample.values for sample in self.samples)
        return tuple(name for name in first if all(name in values for values in others))

    @property
    def usual_means(self) -> dict[str, float]:
        """Judged value by allocation, for non-outlying allocations that occur in every sample."""
        values = {name: self.in_allocation(name) for name in self.common_allocations}
        outlying = outlying_allocations(values)
        return {name: value for name, value in values.items() if name not in outlying}

    @property
    def variance_in_allocations(self) -> float:
        """Variance that runs add to an allocation's value; mean over non-outlying allocations."""
        usual = self.usual_means
        return math.fsum((s.variance or 0.0) * _mean_share(s, usual) for s in self.samples)

    def own_estimate(self) -> Difference:
        """Return `value` with its uncertainty, estimated from this side's runs alone."""
        samples = ([run for runs in each.values.values() for run in runs] for each in self.samples)
        return difference(self.value, [log_sample(runs).term() for runs in samples])

    @property
    def allocation_share(self) -> float:
        """Fraction of the variance between allocations that is left after averaging over them."""
        return max(sample.allocation_share for sample in self.samples)

    @property
    def variance_of_means(self) -> float:
        """Variance of the judged value due to the spread between runs."""
        return math.fsum((runs.variance or 0.0) / runs.sample.count for runs in self.samples)

    def with_further_runs(self, count: int) -> "SideSample":
        """Return the side as if each of its samples had `count` more runs."""
        samples = tuple(sample.with_further_runs(count) for sample in self.samples)
        return replace(self, samples=samples)

    def with_at_least(self, count: int) -> "SideSample":
        """Return the side as if each of its samples had at least `count` runs."""
        more = ((sample, max(0, count - sample.sample.count)) for sample in self.samples)
        samples = tuple(sample.with_further_runs(lacking) for sample, lacking in more)
        return replace(self, samples=samples)

    def in_allocation(self, name: str) -> float:
        """Return the judged value, computed from the runs of the named allocation alone."""
        return _difference([statistics.fmean(sample.values[name]) for sample in self.samples])

    def declared_variance(self, deviation: float, deviation_apart: float) -> float:
        """Return the variance that the declared deviation (apart: of unlike allocations) causes."""
        if self.common_allocations:
            return deviation**2 * self.allocation_share
        # Samples from different allocations share no effect: each has the deviation of a step time.
        return deviation_apart**2 * math.fsum(sample.allocation_share for sample in self.samples)


def _difference(logs: Sequence[float]) -> float:
    """Return the first logarithm, minus the second if there are two."""
    return logs[0] - math.fsum(logs[1:])


def estimates_spread(baseline: SideSample, current: SideSample) -> bool:
    """True if the spread between allocations is estimated from the baseline rather than declared.

    Gains are then relative to the mean of the baseline's non-outlying allocations, not of all its
    runs. Estimating takes 4 allocations, or 2 if they differ far more than runs within them do.
    """
    count = len(baseline.common_allocations)
    if count < 2 or not current.common_allocations:
        return False
    if baseline.is_of_nights or count >= MINIMUM_ALLOCATIONS:
        return count >= MINIMUM_ALLOCATIONS
    between = log_sample([*baseline.usual_means.values()]).variance or 0.0
    return between > max(_LARGE_DEVIATION**2, _FAR_NOISIER * baseline.variance_in_allocations)


def usual_estimate(baseline: SideSample, current: SideSample) -> Difference:
    """Estimate the baseline's value (log T, log(T(n)/T(1)) or a metric) that gains refer to."""
    if not estimates_spread(baseline, current):
        return baseline.own_estimate()
    means = log_sample([*baseline.usual_means.values()])
    return difference(means.mean, [means.term()])


def largest_spread(
    baseline: SideSample, current: SideSample, gain: Difference, *, further_runs: int = 0
) -> Statement:
    """State what adds most to a gain's variance: runs, nights or shrinkage towards other rows.

    `gain` is computed as if the current side had `further_runs` more runs.
    """
    before = [(runs, runs.sample.count) for runs in baseline.samples]
    now = [(runs, runs.sample.count + further_runs) for runs in current.samples]
    of_baseline, of_current = (
        math.fsum(runs.own_variance / count for runs, count in side) for side in (before, now)
    )
    code, side, most = "runs_differ", current, of_current
    shares = baseline.allocation_share + current.allocation_share
    is_estimated = estimates_spread(baseline, current)
    # Means of allocations include the spread of the baseline's runs.
    if of_baseline > of_current and not is_estimated:
        code, side, most = "baseline_runs_differ", baseline, of_baseline
    if is_estimated:
        between = (log_sample([*baseline.usual_means.values()]).variance or 0.0) * shares
    else:
        grown = current.with_further_runs(further_runs)
        of_runs = baseline.variance_of_means, grown.variance_of_means
        between = (gain.variance or 0.0) - sum(of_runs)
        # Few runs that agree by chance differ by more than they show.
        if between < max(of_runs):
            between = 0.0
    # Few runs of the baseline keep a row open, but those of tonight may differ by more.
    variances = [[sample.own_variance for sample in each.samples] for each in (side, current)]
    widest = max(range(len(side.samples)), key=lambda at: max(of[at] for of in variances))
    variance, tonight = variances[0][widest], variances[1][widest]
    if between > most:
        code = "nights_differ" if is_estimated else "nights_assumed"
        variance, most = between / shares, between
    samples = (*before, *now)
    others = max(0.0 if sample.prior is None else sample.prior.variance for sample, _ in samples)
    of_others = math.fsum(sample.prior_part / count for sample, count in samples)
    if of_others > most and others > _FAR_NOISIER * max(s.own_variance for s, _ in samples):
        code, variance = "other_rows_differ", others
    facts: Facts = {"deviation": exponential(math.sqrt(variance)) - 1}
    if code == "baseline_runs_differ" and current.samples[widest].sample.df:
        facts["tonight"] = exponential(math.sqrt(tonight)) - 1
    if widest and code in ("runs_differ", "baseline_runs_differ"):
        facts["on_1"] = True
    return Statement(code, facts)


def gain_of(
    baseline: SideSample, current: SideSample, *, deviation: float, deviation_apart: float = 0.0
) -> Difference:
    """Estimate the gain of the current side over the baseline, on the scale of `SideSample.value`.

    With A allocations and R runs on a side, the gain's variance is the variance between allocations
    times (1/A_baseline + 1/A_current) plus that between runs times (1/R_baseline + 1/R_current).
    The variance between allocations is `deviation` squared or, with enough allocations, estimated
    with that as a prior. If the two step times of a ratio come from different allocations, each has
    `deviation_apart` instead.
    """
    if estimates_spread(baseline, current):
        return _gain_over_allocations(baseline, current, deviation)
    declared = math.fsum(
        side.declared_variance(deviation, deviation_apart) for side in (baseline, current)
    )
    runs = moderated_term((of, 1 / of.sample.count) for of in (*baseline.samples, *current.samples))
    terms = runs, Term(variance=declared, df=math.inf)
    return difference_of_levels(baseline.value - current.value, terms)


def _gain_over_allocations(
    baseline: SideSample, current: SideSample, deviation: float
) -> Difference:
    usual, share = baseline.usual_means, current.allocation_share
    means = log_sample([*usual.values()])
    of_runs, declared = baseline.variance_in_allocations, deviation**2
    # If runs already contain effects of allocations, a sum would count these effects twice.
    of_one = max(declared, of_runs) if baseline.samples[0].holds_allocations else declared + of_runs
    between = Moderated(sample=means, prior=Term(variance=of_one, df=DECLARED_DF))
    of_allocations = Term(
        variance=(between.own_part + between.prior_part) * (1 / len(usual) + share),
        df=means.df + DECLARED_DF,
    )
    # Means of allocations include the spread of their runs. Tonight's runs add more spread if they
    # are fewer than the runs of a baseline allocation, or differ more.
    extra = moderated_term(
        (now, max(0.0, 1 / now.sample.count - share * _included(before, now, usual)))
        for before, now in zip(baseline.samples, current.samples, strict=True)
    )
    return difference_of_levels(means.mean - current.value, [of_allocations, extra])


def _included(before: RunSample, now: RunSample, names: Iterable[str]) -> float:
    """Return (variance that runs add to a `before` allocation's mean) / (variance of a `now` run).

    Runs of both samples are assumed to have the same variance if that of `now` is unknown.
    """
    ratio = 1.0
    if now.sample.df and now.variance and before.variance is not None:
        ratio = min(1.0, before.variance / now.variance)
    return ratio * _mean_share(before, names)


def _mean_share(sample: RunSample, names: Iterable[str]) -> float:
    """Return the mean of 1 / (number of runs) over these allocations."""
    return statistics.fmean(1 / len(sample.values[name]) for name in names)
