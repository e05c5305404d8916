"""Sweeps over simulated fleets with known truth, and the usual rules on the same data."""

import pytest
from simulated_fleet import DRIFTS

from validation.fleet_rules import RULES, by_cleaned_mean, by_median, by_three_sigma, tallied

SWEEPS = 60
TOO_MANY = 7
"""More wrong sweeps of 60 have a probability below 3% if one in twenty is wrong."""


@pytest.mark.thorough
@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01])
@pytest.mark.parametrize("spread", [0.003, 0.008, 0.013])
def test_slow_nodes_and_gpus_are_found_alone(spread: float, noise: float, drift: str) -> None:
    tally = tallied(range(SWEEPS), spread=spread, noise=noise, drift=drift)
    assert tally["gpuscale: wrong"] <= TOO_MANY
    # Of 300, 95% in truth are fewer than 92% in one of a hundred trials.
    assert tally["gpuscale: GPUs"] >= 0.92 * tally["slow"]
    if spread <= 0.008:
        assert tally["gpuscale: nodes"] >= 0.92 * tally["slow"]


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_nodes_that_differ_by_two_percent_are_judged_by_their_past(noise: float) -> None:
    tally = tallied(range(30), spread=0.02, noise=noise, drift="rising", past=2)
    assert tally["gpuscale: wrong"] <= 4
    assert min(tally["gpuscale: nodes"], tally["gpuscale: GPUs"]) >= 0.95 * tally["slow"]


def test_the_usual_rules_as_worked_by_hand() -> None:
    rows = {"a": [1.0], "b": [1.0], "c": [1.0], "d": [1.04], "e": [1.06]}
    assert by_median(rows) == {"e"}
    # The mean is 1.05 with f, and 1.02 without.
    assert by_cleaned_mean({**rows, "f": [1.2]}) == {"f"}
    assert by_three_sigma({**{str(i): [1.0 + i % 2 / 100] for i in range(40)}, "f": [1.2]}) == {"f"}


def test_a_tally_counts_sweeps_and_what_each_rule_calls() -> None:
    tally = tallied(range(1), spread=0.003, noise=0.001, nodes=40, slow=1)
    assert (tally["sweeps"], tally["slow"]) == (1, 1)
    assert tally["gpuscale: nodes"] == tally["gpuscale: GPUs"] == 1
    assert tally["gpuscale: wrong"] == 0
    assert {f"{rule}: nodes" for rule in RULES} <= tally.keys()
