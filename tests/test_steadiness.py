"""Steady and unsteady series of window times, made with known truth."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from gpuscale.analysis.steadiness import steadiness

Rng = np.random.Generator
Noise = Callable[[Rng, int], np.ndarray]


def gaussian(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_normal(count)


def heavy_tailed(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_t(3, count) / math.sqrt(3)


def with_outliers(rng: np.random.Generator, count: int) -> np.ndarray:
    slow = rng.random(count) < 0.07
    return gaussian(rng, count) + slow * rng.lognormal(1.2, 0.6, count)


def correlated(rng: np.random.Generator, count: int) -> np.ndarray:
    before = 20
    shocks = gaussian(rng, count + before) * math.sqrt(0.75)
    values = np.empty(count + before)
    values[0] = shocks[0]
    for i in range(1, count + before):
        values[i] = 0.5 * values[i - 1] + shocks[i]
    return values[before:]


def times_s(rng: Rng, shape: np.ndarray, deviation: float, noise: Noise = gaussian) -> list[float]:
    """Windows of 0.5 s that follow a shape on the log scale, with that relative noise."""
    logs = shape + deviation * noise(rng, len(shape))
    return [0.5 * math.exp(log) for log in logs.tolist()]


def jump(count: int, at: int, size: float) -> np.ndarray:
    return np.where(np.arange(count) >= at, math.log1p(size), 0.0)


def drift(count: int, size: float) -> np.ndarray:
    return np.linspace(0, math.log1p(size), count)


def alternating(count: int, size: float) -> np.ndarray:
    return np.where(np.arange(count) // 2 % 2 == 1, math.log1p(size), 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [gaussian, heavy_tailed, with_outliers, correlated])
@pytest.mark.parametrize("deviation", [0.001, 0.01, 0.03, 0.08])
def test_clean_series_are_rarely_unsteady(noise: Noise, deviation: float) -> None:
    rng = np.random.default_rng(1)
    counts = [count for count in range(5, 31) for _ in range(100)]
    series = (times_s(rng, np.zeros(count), deviation, noise) for count in counts)
    alarms = sum(steadiness(each) is not None for each in series)
    # 2600 series: 0.2% would be 5.2, and 13 or more of them once in 350 trials.
    assert alarms < 13


def kind_of(text: str | None) -> str | None:
    """The shape that a text names: a drift, a level or two levels."""
    words = {"drifts": "drift", "second": "level", "two": "two levels"}
    return None if text is None else words[text.replace(",", "").split()[0]]


SHAPES: dict[str, Callable[[int, float], np.ndarray]] = {
    "level": lambda count, size: jump(count, count // 2, size),
    "drift": drift,
    "two levels": alternating,
}


@pytest.mark.parametrize(
    ("count", "deviation", "at_least"),
    [(8, 0.005, 0.99), (10, 0.01, 0.90), (15, 0.01, 0.99), (20, 0.02, 0.80), (30, 0.02, 0.97)],
)
@pytest.mark.parametrize("kind", SHAPES)
def test_a_change_of_15_percent_is_found_and_called_by_its_name(
    kind: str, count: int, deviation: float, at_least: float
) -> None:
    rng = np.random.default_rng(2)
    trials = 200
    said = [steadiness(times_s(rng, SHAPES[kind](count, 0.15), deviation)) for _ in range(trials)]
    so_called = (each for each in said if each and kind_of(each) == kind)
    percents = [int(re.findall(r"(\d+)%", each)[0]) for each in so_called]
    assert len(percents) >= at_least * trials
    assert np.median(percents) == pytest.approx(15, abs=2)


@pytest.mark.parametrize(
    ("kind", "smallest"),
    [
        ("level", {7: 0.1137, 12: 0.0789, 30: 0.0500}),
        ("drift", {7: 0.1963, 12: 0.0876, 30: 0.0500}),
        ("two levels", {7: 0.1848, 12: 0.0810, 30: 0.0553}),
    ],
)
def test_a_change_counts_from_its_scatter_on(kind: str, smallest: dict[int, float]) -> None:
    for count, size in smallest.items():
        scatter = np.resize([0.01, -0.01, -0.01, 0.005, 0.0], count)
        below, above = (SHAPES[kind](count, size * factor) + scatter for factor in (0.99, 1.01))
        assert steadiness(np.exp(below).tolist()) is None
        assert kind_of(steadiness(np.exp(above).tolist())) == kind


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (jump(12, 6, 0.18), "second level, steps 18% longer from window 7"),
        (jump(12, 4, -0.1), "second level, steps 10% shorter from window 5"),
        (drift(15, 0.2), "drifts, steps 20% longer by window 15 than at window 1"),
        (
            alternating(20, 0.3),
            "two levels, steps 30% longer in 10 of 20 windows than in the others",
        ),
    ],
)
def test_a_change_says_how_large_it_is_and_where(shape: np.ndarray, text: str) -> None:
    assert steadiness(times_s(np.random.default_rng(3), shape, 0.001)) == text


@pytest.mark.parametrize(("slow", "denied"), [(6, False), (7, False), (8, True), (12, True)])
def test_a_slow_stretch_is_denied_if_the_median_is_unsure(slow: int, denied: bool) -> None:
    rng = np.random.default_rng(7)
    series = times_s(rng, jump(18, 3, 0.2) - jump(18, 3 + slow, 0.2), 0.005)
    assert kind_of(steadiness(series)) == ("two levels" if denied else None)


def test_a_minority_of_slow_windows_is_denied_where_the_scatter_puts_the_median_off() -> None:
    logs = np.resize([0.0, 0.1, 1.0, 0.02, 0.08, 1.0, 0.04, 0.06], 24)
    assert sum(logs == 1.0) == 6
    assert kind_of(steadiness(np.exp(logs).tolist())) == "two levels"


@pytest.mark.parametrize(("slow", "at_most"), [(0.1, 0.006), (0.15, 0.03)])
def test_steady_series_with_slow_windows_are_not_denied(slow: float, at_most: float) -> None:
    rng = np.random.default_rng(12)
    trials = 500
    shapes = (np.where(rng.random(20) < slow, math.log1p(0.3), 0.0) for _ in range(trials))
    series = [times_s(rng, shape, 0.005) for shape in shapes]
    assert sum(steadiness(each) is not None for each in series) <= at_most * trials
    # Whatever is not denied has the median of the faster windows.
    medians_s = [np.median(each) for each in series if steadiness(each) is None]
    assert max(medians_s) < 0.5 * 1.02


@pytest.mark.parametrize("outliers", [(3,), (11,), (0, 1), (2, 9)])
def test_one_or_two_slow_windows_are_no_unsteadiness(outliers: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    series = times_s(rng, np.zeros(12), 0.003)
    for i in outliers:
        series[i] *= 1.5
    assert steadiness(series) is None


def test_a_jump_is_found_beside_an_outlier() -> None:
    rng = np.random.default_rng(9)
    series = times_s(rng, jump(15, 8, 0.3), 0.005)
    series[3] *= 1.4
    assert re.fullmatch(r"second level, steps \d+% longer from window 9", steadiness(series) or "")


def test_too_few_windows_tell_nothing() -> None:
    assert steadiness([]) is None
    assert steadiness([1.0, 1.0, 2.0, 2.0]) is None
