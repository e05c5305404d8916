"""The distributions, against scipy's."""

import math

import pytest
from scipy import special

from gpuscale.analysis.probabilities import (
    chi_squared_median,
    normal_quantile,
    t_probability,
    t_quantile,
)

DFS = (0.37, 1, 1.5, 2, 3.3, 7, 12.9, 60, 1000, 250_000.5)


@pytest.mark.parametrize("df", DFS)
def test_students_distribution_agrees_with_scipy(df: float) -> None:
    for quantile in (-1e6, -40.0, -7.5, -2.3, -1.0, -1e-3, 0.0, 0.5, 3.0, 1e6):
        expected = special.stdtr(df, quantile)
        assert t_probability(quantile, df) == pytest.approx(expected, rel=1e-8, abs=1e-290)
    for probability in (1e-12, 1e-5, 0.01, 0.3, 0.4999, 0.5, 0.6, 0.95, 0.9999):
        back = special.stdtr(df, t_quantile(probability, df))
        assert back == pytest.approx(probability, rel=1e-8)


@pytest.mark.parametrize("df", [1e7, math.inf])
def test_many_degrees_of_freedom_are_normal(df: float) -> None:
    assert t_probability(-2.0, df) == pytest.approx(special.ndtr(-2.0), rel=1e-12)
    assert t_quantile(0.975, df) == normal_quantile(0.975)
    assert t_quantile(0.975, 0.99e7) == pytest.approx(normal_quantile(0.975), rel=1e-6)


def test_normal_probabilities_agree_with_scipy_also_far_out() -> None:
    for quantile in (-37.0, -8.0, -1.0, 0.0, 2.0):
        probability = t_probability(quantile, math.inf)
        assert probability == pytest.approx(special.ndtr(quantile), rel=1e-12)
        back = normal_quantile(probability)
        assert back == pytest.approx(quantile, rel=1e-9, abs=1e-9)


def test_the_ends_of_the_scale_are_infinite_or_as_far_as_a_square_goes() -> None:
    assert (normal_quantile(0.0), normal_quantile(1.0)) == (-math.inf, math.inf)
    assert t_quantile(0.0, 2) == -1e140
    assert t_quantile(1e-200, 0.37) == -1e140
    assert t_probability(-1e300, 0.37) > 0


def test_chi_squared_medians_agree_with_scipy() -> None:
    for df in (0.5, 1, 2, 3, 5, 17, 300, 2000):
        assert chi_squared_median(df) == pytest.approx(special.chdtri(df, 0.5), rel=1e-9)
