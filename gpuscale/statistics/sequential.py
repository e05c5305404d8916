"""The error of each of several analyses of growing data that lets all together err as stated."""

import itertools
import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

_NORMAL = NormalDist()
_LOWEST = -8.0
_INTERVALS = 80
"""Even, as Simpson's rule needs; levels are then exact to five digits."""
_TOLERANCE = 1e-6


@cache
def nominal_error(overall: float, first: int, last: int) -> float:
    """The one-sided error of each look after `first`, …, `last` runs, after Pocock (1977).

    The analyses share their data, so each may err more than `overall` over their number. Taken
    is the case in which they share least: all that varies are the runs that are added. What
    stays the same from one to the next, the baseline and tonight's nodes, only ties them
    closer together, and the overall error is then smaller.

    Args:
        overall: the chance that a true null is rejected at any look.
        first: runs at the first look.
        last: runs at the last look; there is a look after each run between.
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
    """The chance that a standardised mean exceeds `bound` at any look under the null.

    The recursion of Armitage, McPherson and Rowe (1969), by Simpson's rule.

    Args:
        shares: the part of all data that each look has, ascending.
        bound: in standard deviations, the same at each look.
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
