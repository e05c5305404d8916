"""The usual tools' rules against examples worked by hand (tests/validation/rules.py)."""

import math
from typing import Any

import pytest
from pytest_benchmark.utils import PercentageRegressionCheck

from validation.rules import asv_worse, out_of_reference, percentage_check

Runs = list[list[float]]


@pytest.mark.parametrize("now_s", [0.9, 1.0, 1.04, 1.05, 1.0501, 1.06, 2.0])
def test_the_percentage_check_is_that_of_pytest_benchmark_itself(now_s: float) -> None:
    check: Any = PercentageRegressionCheck
    original = check("median", 5).fails({"median": now_s}, {"median": 1.0})
    assert percentage_check([[1.0]], [[now_s]], percentage=5) == bool(original)


def _separated(before: int, after: int, ratio: float) -> tuple[Runs, Runs]:
    return ([[1 + i * 1e-6 for i in range(before)]], [[ratio + i * 1e-6 for i in range(after)]])


def test_asv_needs_the_factor_and_significance() -> None:
    def rule(samples: tuple[Runs, Runs]) -> bool:
        return asv_worse(*samples, factor=1.1, p_threshold=0.002)

    # Two samples of 6 and 7 without overlap: p = 2 / C(13, 6) = 0.00117.
    assert rule(_separated(6, 7, 1.2))
    assert not rule(_separated(6, 7, 1.09))
    assert not rule(_separated(6, 7, 0.8))
    # Of 6 and 6: p = 2 / C(12, 6) = 0.00216, although 1 / C(12, 6) lets the test be tried.
    assert not rule(_separated(6, 6, 1.2))


def test_asv_has_an_exact_p_up_to_20_samples() -> None:
    p = 2 / math.comb(40, 20)
    assert asv_worse(*_separated(20, 20, 1.2), factor=1.1, p_threshold=p * 1.01)
    assert not asv_worse(*_separated(20, 20, 1.2), factor=1.1, p_threshold=p * 0.99)


@pytest.mark.parametrize(
    ("runs_s", "fails"),
    [([1.05, 1.0], False), ([1.051, 1.0], True), ([0.949, 1.0], True), ([0.951, 1.049], False)],
)
def test_reframe_fails_if_any_run_lies_outside(runs_s: list[float], fails: bool) -> None:
    baseline = [[1.0], [0.5], [1.5]]
    assert out_of_reference(baseline, [[time_s] for time_s in runs_s], tolerance=0.05) == fails
