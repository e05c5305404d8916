"""Tests of several changes at once or again and again, what they find, and counted rates."""

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist

from gpuscale.records.verdict import Estimate, Rate
from gpuscale.statistics.distributions import beta_quantile
from gpuscale.statistics.estimates import (
    CONFIDENCE,
    POWER,
    SIGNIFICANCE,
    Difference,
    exponential,
)

_NORMAL = NormalDist()
_LOWEST = -8.0
_INTERVALS = 80
"""Even, as Simpson's rule needs; levels are then exact to five digits."""
_TOLERANCE = 1e-6


def benjamini_hochberg(
    probabilities: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """The adjusted p of each test of a family, in the order given.

    Args:
        probabilities: the p of each test.
        weights: how much of the family's error each test may spend, above 0; only their
            ratios count (Genovese, Roeder and Wasserman 2006).
    """
    count = len(probabilities)
    mean = math.fsum(weights) / count if count else 1.0
    weighted = [p * mean / weight for p, weight in zip(probabilities, weights, strict=True)]
    adjusted = [0.0] * count
    smallest = 1.0
    descending = sorted(range(count), key=lambda i: weighted[i], reverse=True)
    for rank, index in zip(range(count, 0, -1), descending, strict=True):
        smallest = min(smallest, weighted[index] * count / rank)
        # A heavy test of a family that is mostly lost would come out below its own p.
        adjusted[index] = max(smallest, probabilities[index])
    return tuple(adjusted)


def detectable_loss(
    test: Difference, *, significance: float = SIGNIFICANCE, margin: float = 0.0
) -> float | None:
    """The smallest relative loss that a test of this standard error finds 19 times in 20.

    Found means: one-sided p below `significance`, and an observed loss above `margin`.
    None where the standard error is unknown.
    """
    needed, power = test.half_width(1 - significance), test.half_width(POWER)
    if needed is None or power is None:
        return None
    return 1 - exponential(-(max(needed, -math.log1p(-margin)) + power))


def rate_of(counts: Iterable[tuple[int, int]]) -> Rate:
    """The rate of events over clusters, with the interval of Korn and Graubard (1998).

    That is Clopper and Pearson's interval for as many independent trials as the clusters are
    worth: fewer than there were, where events come together in the same clusters, but never
    fewer than the clusters. Without any event (or with nothing else) nothing tells how they
    come together, and each cluster counts as one trial.

    Args:
        counts: for each cluster (a comparison) how many events among how many trials (rows).
    """
    clusters = [(events, trials) for events, trials in counts if trials]
    if not clusters:
        raise ValueError("a rate of no trials is nothing")
    events, trials = (sum(column) for column in zip(*clusters, strict=True))
    rate = events / trials
    low, high = _clopper_pearson(rate, _independent_trials(clusters, rate, trials))
    return Rate(count=events, of=trials, rate=Estimate(value=rate, low=low, high=high))


def _independent_trials(clusters: Sequence[tuple[int, int]], rate: float, trials: int) -> float:
    count = len(clusters)
    if count == 1 or rate in (0.0, 1.0):
        return float(count)
    squares = math.fsum((events - rate * of) ** 2 for events, of in clusters)
    variance = squares * count / (count - 1) / trials**2
    if variance == 0:
        return float(trials)
    return min(max(rate * (1 - rate) / variance, count), trials)


def _clopper_pearson(rate: float, trials: float) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    events = rate * trials
    low = beta_quantile(tail, events, trials - events + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, events + 1, trials - events) if rate < 1 else 1.0
    return low, high


@cache
def nominal_error(overall: float, first: int, last: int) -> float:
    """The one-sided error of each analysis after `first`, …, `last` runs, after Pocock (1977).

    The analyses share their data, so each may err more than `overall` over their number. Taken
    is the case in which they share least: all that varies are the runs that are added. What
    stays the same from one to the next, the baseline and tonight's nodes, only ties them
    closer together, and the overall error is then smaller.

    Args:
        overall: the chance that a true null is rejected at any analysis.
        first: runs at the first analysis.
        last: runs at the last analysis; there is one after each run between.
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
    """The chance that a standardised mean exceeds `bound` at any analysis under the null.

    The recursion of Armitage, McPherson and Rowe (1969), by Simpson's rule.

    Args:
        shares: the part of all data that each analysis has, ascending.
        bound: in standard deviations, the same at each.
    """
    step = (bound - _LOWEST) / _INTERVALS
    grid = [_LOWEST + step * i for i in range(_INTERVALS + 1)]
    weights = [step / 3 * _simpson(i) for i in range(_INTERVALS + 1)]
    crossed = 1 - _NORMAL.cdf(bound)
    inside = [_NORMAL.pdf(z) for z in grid]
    for before, now in itertools.pairwise(shares):
        kept, deviation = math.sqrt(before / now), math.sqrt(1 - before / now)
        mass = [weight * density for weight, density in zip(weights, inside, strict=True)]
        crossed += math.fsum(
            part * _NORMAL.cdf((kept * z - bound) / deviation)
            for part, z in zip(mass, grid, strict=True)
        )
        inside = [_density(z, kept, deviation, mass, grid) for z in grid]
    return crossed


def _simpson(position: int) -> int:
    if position in (0, _INTERVALS):
        return 1
    return 4 if position % 2 else 2


def _density(
    at: float, kept: float, deviation: float, mass: Sequence[float], grid: Sequence[float]
) -> float:
    scale = 1 / (deviation * math.sqrt(2 * math.pi))
    return scale * math.fsum(
        part * math.exp(-0.5 * ((at - kept * z) / deviation) ** 2)
        for part, z in zip(mass, grid, strict=True)
    )
