"""Probabilities of the normal, Student's t, F, beta and chi-squared distributions.

Only the standard library is used: importing `scipy.special` takes longer than a whole comparison.
"""

import math
from functools import cache, lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_NORMAL_DF = 1e7
"""Degrees of freedom above which Student's t equals the normal distribution to seven digits."""
_EPSILON = 1e-14
_LARGEST_QUANTILE = 1e140


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


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution for a probability, limited to ±1e140."""
    if df >= _NORMAL_DF:
        return normal_quantile(probability)
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1 - probability)
    size = _t_quantile_of_tail(tail, df) if tail > 0 else _LARGEST_QUANTILE
    return -size if probability < 0.5 else size


def _t_quantile_of_tail(tail: float, df: float) -> float:
    """Value that Student's t exceeds with the probability `tail`, which is below 0.5.

    Solved by Newton's method: the log probability is a concave function of the log value, so the
    result is approached from above from the second step on.
    """
    z = -normal_quantile(tail)
    start = z + (z**3 + z) / (4 * df)
    log_size, goal = math.log(start), math.log(tail)
    limit = math.log(_LARGEST_QUANTILE)
    while True:
        size = math.exp(min(log_size, limit))
        found = _t_tail(size, df)
        if found == 0:
            return size
        slope = size * _t_density(size, df) / found
        step = (math.log(found) - goal) / slope
        log_size += step
        if log_size >= limit:
            return _LARGEST_QUANTILE
        if abs(step) < 1e-7:
            return math.exp(log_size)


def _t_density(size: float, df: float) -> float:
    scale = math.exp(-_log_beta(df / 2, 0.5)) / math.sqrt(df)
    return scale * math.exp(-(df + 1) / 2 * math.log1p(size * size / df))


def _t_tail(size: float, df: float) -> float:
    """Probability that Student's t exceeds `size`, which is positive."""
    square = size * size
    return 0.5 * _beta_probability(df / 2, 0.5, df / (df + square), square / (df + square))


def f_tail(ratio: float, df: float, other_df: float) -> float:
    """Return the probability that an F variable exceeds `ratio`; `df` is that of the numerator."""
    if ratio == 0 or math.isinf(ratio):
        return float(ratio == 0)
    total = other_df + df * ratio
    return _beta_probability(other_df / 2, df / 2, other_df / total, df * ratio / total)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of a beta distribution for a probability, to floating-point precision."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _beta_probability(a, b, middle, 1 - middle) < probability:
            low = middle
        else:
            high = middle
    return high


def _beta_probability(a: float, b: float, x: float, rest: float) -> float:
    """Regularised incomplete beta function at `x`; `rest` is 1 - `x`, free of rounding error."""
    front = math.exp(a * math.log(x) + b * math.log(rest) - _log_beta(a, b))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, rest) / b


@lru_cache(maxsize=4096)
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, evaluated by Lentz's method."""
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = lower
    count = 1
    while True:
        double = 2 * count
        even = count * (b - count) * x / ((a + double - 1) * (a + double))
        lower, upper = 1 / (1 + even * lower), 1 + even / upper
        value *= lower * upper
        odd = -(a + count) * (a + b + count) * x / ((a + double) * (a + double + 1))
        lower, upper = 1 / (1 + odd * lower), 1 + odd / upper
        factor = lower * upper
        value *= factor
        if abs(factor - 1) < _EPSILON:
            return value
        count += 1


@cache
def chi_squared_median(df: float) -> float:
    """Return the median of a chi-squared distribution with `df` > 0 degrees of freedom."""
    half = df / 2
    # Wilson and Hilferty's approximation, then Newton's method for the gamma function below.
    value = half * (1 - 1 / (9 * half)) ** 3 if half > 0.5 else half / 2
    while True:
        below, density = _gamma_below(half, value)
        step = (0.5 - below) / density
        value += max(step, -value / 2)
        if abs(step) < 1e-12 * value:
            return 2 * value


def _gamma_below(shape: float, value: float) -> tuple[float, float]:
    """Cumulative probability and density, at `value`, of a gamma distribution with this shape."""
    density = math.exp((shape - 1) * math.log(value) - value - math.lgamma(shape))
    term = total = 1 / shape
    count = shape
    while term > total * _EPSILON:
        count += 1
        term *= value / count
        total += term
    return density * value * total, density
