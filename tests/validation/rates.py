"""Rates of events among rows that err together, with their intervals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import betaincinv

from gpuscale.analysis.estimates import CONFIDENCE
from gpuscale.base.text import format_percent
from gpuscale.records import Estimate
from gpuscale.reports.phrases import bounds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A count out of a total, with the rate and its 95% interval."""

    count: int
    of: int
    rate: Estimate


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
    low = float(betaincinv(events, trials - events + 1, tail)) if rate > 0 else 0.0
    high = float(betaincinv(events + 1, trials - events, 1 - tail)) if rate < 1 else 1.0
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


def coarse_rate_text(rate: Rate) -> str:
    """Format a rate, `97.1 % [94, 99]`; bounds in whole percent are too coarse for small rates."""
    bounds = bounds_text(rate.rate, lambda share: f"{share * 100:.0f}")
    return f"{format_percent(rate.rate.value)} {bounds}".rstrip()
