"""Multiple tests, repeated tests, the losses that a test can detect, and rates of events."""

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist

from gpuscale.analysis.statistics.distributions import beta_quantile
from gpuscale.analysis.statistics.estimates import CONFIDENCE, SIGNIFICANCE, Difference, exponential
from gpuscale.records import Estimate, Rate

_POWER = 0.95
_NORMAL = NormalDist()
_LOWEST = -8.0
_SIMPSON = (1, *(4, 2) * 39, 4, 1)
"""Weights of Simpson's rule over 80 intervals, which give error levels exact to five digits."""
_TOLERANCE = 1e-6


def benjamini_hochberg(
    probabilities: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Return the weighted Benjamini-Hochberg adjusted p-value of each test in a family.

    The positive weights divide the false-discovery budget among the tests; only their ratios matter
    (Genovese et al. 2006).
    """
    count = len(probabilities)
    mean = math.fsum(weights) / count if count else 1.0
    weighted = [p * mean / weight for p, weight in zip(probabilities, weights, strict=True)]
    adjusted: dict[int, float] = {}
    smallest = 1.0
    descending = sorted(range(count), key=lambda i: weighted[i], reverse=True)
    for rank, index in zip(range(count, 0, -1), descending, strict=True):
        smallest = min(smallest, weighted[index] * count / rank)
        # A heavily weighted test among many rejected ones would fall below its own p-value.
        adjusted[index] = max(smallest, probabilities[index])
    return tuple(adjusted[index] for index in range(count))


def detectable_loss(
    test: Difference, *, significance: float = SIGNIFICANCE, margin: float = 0.0
) -> float | None:
    """Return the smallest relative loss that a test with this standard error finds 19 times in 20.

    A loss is found if the one-sided p-value is below `significance` and the observed loss is above
    `margin`. The result is None if the standard error is unknown.
    """
    needed, power = test.half_width(1 - significance), test.half_width(_POWER)
    if needed is None or power is None:
        return None
    return 1 - exponential(-(max(needed, -math.log1p(-margin)) + power))


def rate_of(counts: Iterable[tuple[int, int]]) -> Rate:
    """Return the rate of events in clustered trials, with the interval of Korn and Graubard (1998).

    `counts` has the numbers of events and trials (rows) in each cluster (comparison). The interval
    is Clopper and Pearson's for an effective number of independent trials, which is smaller than
    the number of trials if events cluster, but at least one per cluster. If no trial or every trial
    is an event, each cluster counts as one trial.
    """
    clusters = [(events, trials) for events, trials in counts if trials]
    if not clusters:
        raise ValueError("a rate of no trials is nothing")
    count, of = (sum(column) for column in zip(*clusters, strict=True))
    rate, tail = count / of, (1 - CONFIDENCE) / 2
    trials = _independent_trials(clusters, rate, of)
    events = rate * trials
    low = beta_quantile(tail, events, trials - events + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, events + 1, trials - events) if rate < 1 else 1.0
    return Rate(count=count, of=of, rate=Estimate(value=rate, low=low, high=high))


def _independent_trials(clusters: Sequence[tuple[int, int]], rate: float, trials: int) -> float:
    count = len(clusters)
    if count == 1 or rate in (0.0, 1.0):
        return float(count)
    squares = math.fsum((events - rate * of) ** 2 for events, of in clusters)
    variance = squares * count / (count - 1) / trials**2
    if variance == 0:
        return float(trials)
    return min(max(rate * (1 - rate) / variance, count), trials)


@cache
def nominal_error(overall: float, first: int, last: int) -> float:
    """Return the one-sided level of each analysis after `first`, …, `last` runs (Pocock 1977).

    `overall` is the probability that any analysis rejects a true null hypothesis. The analyses
    share data, so each may use more than an equal part of `overall`. The result assumes that
    the analyses share only runs: sharing more (the baseline, the nodes) lowers the overall error.
    """
    shares = [runs / last for runs in range(first, last + 1)]
    low, high = overall / len(shares), overall
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if crossing_probability(shares, _NORMAL.inv_cdf(1 - middle)) > overall:
            high = middle
        else:
            low = middle
    return low


def crossing_probability(shares: Sequence[float], bound: float) -> float:
    """Return the probability that a standardised mean exceeds `bound` at any analysis by chance.

    The recursion is by Armitage, McPherson and Rowe (1969). `shares` are the fractions of all data
    that are available at each analysis, in ascending order.
    """
    step = (bound - _LOWEST) / (len(_SIMPSON) - 1)
    grid = [_LOWEST + step * i for i in range(len(_SIMPSON))]
    crossed = 1 - _NORMAL.cdf(bound)
    inside = [_NORMAL.pdf(z) for z in grid]
    for before, now in itertools.pairwise(shares):
        kept, deviation = math.sqrt(before / now), math.sqrt(1 - before / now)
        scale = 1 / (deviation * math.sqrt(2 * math.pi))
        mass = [step / 3 * weight * at for weight, at in zip(_SIMPSON, inside, strict=True)]
        crossed += math.fsum(
            part * _NORMAL.cdf((kept * z - bound) / deviation)
            for part, z in zip(mass, grid, strict=True)
        )
        inside = [
            scale
            * math.fsum(
                part * math.exp(-0.5 * ((at - kept * z) / deviation) ** 2)
                for part, z in zip(mass, grid, strict=True)
            )
            for at in grid
        ]
    return crossed
