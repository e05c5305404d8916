"""Rates of events that come together, and their intervals."""

import numpy as np
import pytest
from statements import known

from validation.rates import rate_of


def test_independent_trials_have_the_interval_of_clopper_and_pearson() -> None:
    rate = rate_of([(1, 1)] * 3 + [(0, 1)] * 7)
    assert (rate.count, rate.of, rate.rate.value) == (3, 10, 0.3)
    # Clopper and Pearson (1934), 3 of 10.
    assert rate.rate.low == pytest.approx(0.0667, abs=1e-4)
    assert rate.rate.high == pytest.approx(0.6525, abs=1e-4)


def test_rows_that_always_err_together_count_as_one() -> None:
    together = rate_of([(8, 8)] * 3 + [(0, 8)] * 7)
    assert (together.count, together.of) == (24, 80)
    assert together.rate == rate_of([(1, 1)] * 3 + [(0, 1)] * 7).rate


def test_the_interval_covers_the_truth_where_rows_err_together() -> None:
    rng = np.random.default_rng(3)
    truth, trials, covered = 0.05, 400, 0
    for _ in range(trials):
        # Beta-binomial: in most comparisons no row errs, in few many do.
        chances = rng.beta(truth * 0.5, (1 - truth) * 0.5, 150)
        rate = rate_of([(int(count), 8) for count in rng.binomial(8, chances)]).rate
        covered += known(rate.low) <= truth <= known(rate.high)
    assert covered / trials > 0.92
