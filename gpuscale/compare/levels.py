"""The three levels of spread: windows in runs (taken as medians), runs, allocations."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.records import Tolerances
from gpuscale.statistics import (
    Difference,
    Sample,
    Term,
    difference,
    grouped_log_sample,
    log_sample,
    moderated,
    prior_of,
)

MINIMUM_ALLOCATIONS = 4
"""From so many allocations on, a baseline's own spread between them is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a ratio on one side: the runs of one entry, by allocation."""

    logs: Mapping[str, tuple[float, ...]]
    """Logarithms of step times; at least one."""
    sample: Sample
    """Their mean, with the (moderated) variance of a run within its allocation."""

    @property
    def allocation_share(self) -> float:
        """What part of the variance between allocations is left in the mean: 1/A if balanced."""
        total = sum(len(logs) for logs in self.logs.values())
        return math.fsum((len(logs) / total) ** 2 for logs in self.logs.values())

    def with_further_runs(self, count: int) -> "End":
        """The end as so many more runs in the same allocation would leave it, mean unchanged."""
        return replace(
            self,
            sample=replace(self.sample, count=self.sample.count + count, df=self.sample.df + count),
        )


def moderated_ends(sides: Sequence[Mapping[str, tuple[float, ...]]]) -> list[End]:
    """The ends of a whole comparison, each variance moderated by all the other samples."""
    samples = [grouped_log_sample(logs.values()) for logs in sides]
    return [
        End(
            logs=logs,
            sample=moderated(own, prior_of(other for j, other in enumerate(samples) if j != i)),
        )
        for i, (logs, own) in enumerate(zip(sides, samples, strict=True))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """One side of a judged quantity: the runs on n GPUs and, for S(n), those on 1 GPU."""

    time: End
    reference: End | None = None

    @property
    def log_value(self) -> float:
        """The logarithm of T(n), or of T(n)/T(1): larger is worse."""
        return self.time.sample.mean - (self.reference.sample.mean if self.reference else 0.0)

    @property
    def all(self) -> tuple[End, ...]:
        """The one or two ends."""
        return (self.time,) if self.reference is None else (self.time, self.reference)

    @property
    def common_allocations(self) -> tuple[str, ...]:
        """The allocations in which every end was measured, in order."""
        if self.reference is None:
            return tuple(self.time.logs)
        return tuple(name for name in self.time.logs if name in self.reference.logs)

    @property
    def allocation_share(self) -> float:
        """What part of the variance between allocations is left in the value."""
        return max(end.allocation_share for end in self.all)

    def in_allocation(self, name: str) -> float:
        """The value as that allocation alone gives it."""
        time = statistics.fmean(self.time.logs[name])
        return time - (statistics.fmean(self.reference.logs[name]) if self.reference else 0.0)

    def declared_variance(self, tolerances: Tolerances) -> float:
        """The variance that the declared deviation between allocations puts on the value."""
        if self.reference is not None and self.common_allocations:
            return tolerances.allocation_deviation_speedup**2 * self.allocation_share
        # Two ends from different nodes share nothing: each has the full deviation of a time.
        return tolerances.allocation_deviation_time**2 * math.fsum(
            end.allocation_share for end in self.all
        )


def estimates_allocations(baseline: Ends, current: Ends) -> bool:
    """Whether the baseline's own spread between allocations is used, not the declared one."""
    return len(baseline.common_allocations) >= MINIMUM_ALLOCATIONS and bool(
        current.common_allocations
    )


def log_gain(baseline: Ends, current: Ends, tolerances: Tolerances) -> Difference:
    """How much faster (or better scaling) the current side is, as a logarithm.

    The variance between allocations counts (1/A_baseline + 1/A_now) times, that between runs
    (1/R_baseline + 1/R_now) times. The former is declared, or estimated where the baseline
    gathers enough allocations.
    """
    if estimates_allocations(baseline, current):
        return _gain_over_allocations(baseline, current)
    value = baseline.log_value - current.log_value
    declared = baseline.declared_variance(tolerances) + current.declared_variance(tolerances)
    runs = [end.sample.term() for end in (*baseline.all, *current.all)]
    return difference(value, [*runs, Term(variance=declared, df=math.inf)])


def _gain_over_allocations(baseline: Ends, current: Ends) -> Difference:
    names = baseline.common_allocations
    between = log_sample([baseline.in_allocation(name) for name in names])
    share = current.allocation_share
    # Means of allocations already hold the spread of their runs. Only what fewer runs than a
    # baseline allocation had add to it is still to be counted.
    extra = [
        now.sample.term(
            max(
                0.0,
                1 / now.sample.count
                - share * statistics.fmean(1 / len(before.logs[name]) for name in names),
            )
        )
        for before, now in zip(baseline.all, current.all, strict=True)
    ]
    return difference(
        between.mean - current.log_value, [between.term(1 / len(names) + share), *extra]
    )
