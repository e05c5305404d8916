"""Rates with intervals, where rows of one comparison are not independent of each other."""

import math
from collections.abc import Iterable, Sequence

from scipy import special

from gpuscale.records.estimate import Estimate
from gpuscale.records.simulation import Rate
from gpuscale.statistics import CONFIDENCE


def rate_of(counts: Iterable[tuple[int, int]]) -> Rate:
    """The rate of events over clusters, with the interval of Korn and Graubard (1998).

    That is Clopper and Pearson's interval for as many independent trials as the clusters are
    worth: fewer than there were, where events come together in the same clusters, but never
    fewer than the clusters. Without any event (or with nothing else) nothing tells how they
    come together, and each cluster counts as one trial.

    Args:
        counts: for each cluster (a comparison) how many events among how many trials (rows).

    Raises:
        ValueError: there is no trial.
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
    low = special.betaincinv(events, trials - events + 1, tail) if rate > 0 else 0.0
    high = special.betaincinv(events + 1, trials - events, 1 - tail) if rate < 1 else 1.0
    return float(low), float(high)
