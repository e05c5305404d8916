"""Errors of bisections over many simulations with known truth."""

import pytest
from bisecting import KINDS
from test_bisection import tallied


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_culprits_are_rare_and_the_right_ones_usual(kind: str, noise: float) -> None:
    for changes in (4, 11, 33, 64):
        tally, allowed = tallied(kind, changes, noise, 400)
        assert tally.wrong <= 0.01 * tally.of
        assert tally.right >= 0.95 * tally.of
        if kind in ("one", "two", "three", "partial"):
            assert tally.trials / tally.of <= allowed + 9
