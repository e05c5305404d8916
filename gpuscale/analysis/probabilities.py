"""Probability distributions, p-values adjusted for many tests, and error rates of repeated tests.

Only the standard library is used: importing `scipy.special` takes longer than a whole comparison.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_NORMAL_DF = 1e7
"""Degrees of freedom above which Student's t equals the normal distribution to seven digits."""
_EPSILON = 1e-14
_LARGEST_QUANTILE = 1e140
_LOWEST = -8.0
_SIMPSON = (1, *(4, 2) * 39, 4, 1)
"""Weights of Simpson's rule over 80 intervals, which give error levels exact to five digits."""
_TOLERANCE = 1e-6


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution for a probability from 0 to 1."""
    if not 0 < probability < 1:
        return math.inf if probability >= 1 else -math.inf
    return _NORMAL.inv_cdf(probability)


def t_probability(quantile: float, df: float) -> float:
    """Return the probability that Student's t is below `quantile`; `df` may be infinite."""
    if df >= _NORMAL_DF:
        return 0.5 * math.erfc(-quantile / math.sqrt(2))
    if quantile == 0:
        return 0.5
    tail = _t_tail(min(abs(quantile), _LARGEST_QUANTILE), df)
    return tail if quantile < 0 else 1 - tail


@lru_cache(maxsize=32768)
def t_quantile(probability: float, df: float) -> float:
    """Return the quantile, limited to ±1e140, of Student's t distribution for a probability."""
    if df >= _NORMAL_DF:
        return normal_quantile(probability)
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1 - probability)
    size = _t_quantile_of_tail(tail, df) if tail > 0 else _LARGEST_QUANTILE
    return -size if probability < 0.5 else size


def _t_quantile_of_tail(tail: float, df: float) -> float:
    """Return the value that Student's t exceeds with the probability `tail`, which is below 0.5.

    Halley's method finds the log value from the log probability, which is a concave function of it;
    it starts from the approximation by Wallace (1959).
    """
    limit, goal = math.log(_LARGEST_QUANTILE), math.log(tail)
    exponent = (normal_quantile(tail) * (8 * df + 3) / (8 * df + 1)) ** 2 / df
    log_size = 0.5 * math.log(df * math.expm1(min(exponent, limit)))
    while True:
        size = math.exp(min(log_size, limit))
        found = _t_tail(size, df)
        if found == 0:
            return size
        scale = math.exp(-_log_beta(df / 2, 0.5)) / math.sqrt(df)
        density = scale * math.exp(-(df + 1) / 2 * math.log1p(size * size / df))
        # Where the density underflows, the tail is a power of the size.
        slope = size * density / found or df
        step = (math.log(found) - goal) / slope
        bend = 1 + slope - (df + 1) / (1 + df / (size * size))
        step /= max(0.5, 1 + 0.5 * step * bend)
        log_size += step
        if log_size >= limit:
            return _LARGEST_QUANTILE
        # The error is about the cube of a step, at most 1e-8.
        if abs(step) < 3e-3:
            return math.exp(log_size)


def _t_tail(size: float, df: float) -> float:
    """Return the probability that Student's t exceeds `size`, which is positive."""
    square = size * size
    # This is half the regularised incomplete beta function at `x`; `rest` is 1 - `x`, unrounded.
    a, b, x, rest = df / 2, 0.5, df / (df + square), square / (df + square)
    front = math.exp(a * math.log(x) + b * math.log(rest) - _log_beta(a, b))
    if x < (a + 1) / (a + b + 2):
        return 0.5 * (front * _beta_fraction(a, b, x) / a)
    return 0.5 * (1 - front * _beta_fraction(b, a, rest) / b)


@lru_cache(maxsize=4096)
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = lower
    for count in itertools.count(1):
        double = 2 * count
        even = count * (b - count) * x / ((a + double - 1) * (a + double))
        odd = -(a + count) * (a + b + count) * x / ((a + double) * (a + double + 1))
        lower, upper = 1 / (1 + even * lower), 1 + even / upper
        value *= lower * upper
        lower, upper = 1 / (1 + odd * lower), 1 + odd / upper
        value *= lower * upper
        if abs(lower * upper - 1) < _EPSILON:
            break
    return value


@cache
def chi_squared_median(df: float) -> float:
    """Return the median of a chi-squared distribution with `df` > 0 degrees of freedom."""
    value = half = df / 2
    while True:
        below, density = _gamma_below(half, value)
        step = (0.5 - below) / density
        value += max(step, -value / 2)
        if abs(step) < 1e-12 * value:
            return 2 * value


def _gamma_below(shape: float, value: float) -> tuple[float, float]:
    """Return the cumulative probability and the density of a gamma distribution at `value`."""
    density = math.exp((shape - 1) * math.log(value) - value - math.lgamma(shape))
    term = total = 1 / shape
    count = shape
    while term > total * _EPSILON:
        count += 1
        term *= value / count
        total += term
    return density * value * total, density


def benjamini_hochberg(
    probabilities: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Return p-values adjusted by the weighted Benjamini-Hochberg method (Genovese et al. 2006).

    The positive weights divide the false-discovery budget; only their ratios matter.
    """
    count = len(probabilities)
    mean = math.fsum(weights) / count if count else 1.0
    weighted = [p * mean / weight for p, weight in zip(probabilities, weights, strict=True)]
    adjusted: dict[int, float] = {}
    smallest = 1.0
    descending = sorted(range(count), key=lambda i: weighted[i], reverse=True)
    for rank, index in zip(range(count, 0, -1), descending, strict=True):
        smallest = min(smallest, weighted[index] * count / rank)
        # The adjusted p-value of a heavily weighted test could otherwise be below its p-value.
        adjusted[index] = max(smallest, probabilities[index])
    return tuple(adjusted[index] for index in range(count))


@cache
def nominal_error(overall: float, first: int, last: int) -> float:
    """Return the one-sided significance level for a test after each run from `first` to `last`.

    `overall` is the probability that any of these tests rejects a true null hypothesis (Pocock
    1977). The actual probability is lower if the tests share a baseline or nodes as well as runs.
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
    """Return the probability that a standardised mean exceeds `bound` by chance in any analysis.

    `shares` are the fractions of all data that the analyses use, ascending (Armitage et al. 1969).
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
