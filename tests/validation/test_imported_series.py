"""Steps found in series as other tools record them, beside the rules of those tools."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from gpuscale.analysis.shifts_and_drifts import level_changes

pytestmark = pytest.mark.thorough

SESSIONS = 30
STEP = 0.04
SICK = 0.2
SERIES = 1000
Nights = Sequence[tuple[int, float]]
Rule = Callable[[Nights], set[int]]
"""Returns the sessions on which a rule reports a loss, of (session, log of the cost) pairs."""


def nights(rng: random.Random, deviation: float, step_at: int | None, sick: int) -> Nights:
    """A series with a sick session and two missing ones; a step, if any, stays complete."""
    kept = {0} if step_at is None else {0, step_at, step_at + 1}
    missing = rng.sample([n for n in range(SESSIONS) if n not in kept], 2)
    return [
        (
            session,
            rng.gauss(0, deviation)
            - (math.log(1 - STEP) if step_at is not None and session >= step_at else 0)
            - (math.log(1 - SICK) if session == sick else 0),
        )
        for session in range(SESSIONS)
        if session not in missing
    ]


def history(series: Nights) -> set[int]:
    costs = [cost for _, cost in series]
    return {series[change.seen][0] for change in level_changes(costs) if change.change > 0}


def reference(tolerance: float) -> Rule:
    """ReFrame's rule: the first session is the reference, less than the tolerance is lost."""
    return lambda series: {n for n, cost in series if cost - series[0][1] > -math.log1p(-tolerance)}


def previous(series: Nights) -> set[int]:
    """pytest-benchmark's `--benchmark-compare-fail=mean:5%`, against the session before."""
    pairs = itertools.pairwise(series)
    return {now for (_, before), (now, cost) in pairs if cost - before > math.log(1.05)}


RULES: dict[str, Rule] = {
    "gpuscale history": history,
    "ReFrame, 5 %": reference(0.05),
    "ReFrame, 10 %": reference(0.10),
    "pytest-benchmark, 5 %": previous,
}


def rates(deviation: float) -> dict[str, tuple[float, float]]:
    """For each rule: steps found within two sessions, and series without a step that alarm."""
    rng = random.Random(26)
    found, alarmed = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0)
    for _ in range(SERIES):
        step_at = rng.randrange(10, SESSIONS - 2)
        sick = rng.choice([n for n in range(2, SESSIONS) if abs(n - step_at) > 3])
        with_step = nights(rng, deviation, step_at, sick)
        without = nights(rng, deviation, None, sick)
        for name, rule in RULES.items():
            found[name] += not rule(with_step).isdisjoint({step_at, step_at + 1})
            alarmed[name] += bool(rule(without))
    return {name: (found[name] / SERIES, alarmed[name] / SERIES) for name in RULES}


@pytest.mark.parametrize("deviation", [0.001, 0.003, 0.005, 0.007])
def test_steps_of_4_percent_are_found_within_two_sessions(deviation: float) -> None:
    found, alarmed = rates(deviation)["gpuscale history"]
    assert found >= 0.93
    assert alarmed <= 0.01


def test_at_1_percent_between_sessions_most_steps_are_found() -> None:
    assert rates(0.01)["gpuscale history"][0] > 0.6


@pytest.mark.parametrize("deviation", [0.001, 0.01, 0.012])
def test_a_sick_session_alarms_fixed_thresholds_and_hardly_ever_a_history(deviation: float) -> None:
    of_rules = rates(deviation)
    assert of_rules.pop("gpuscale history")[1] <= 0.02
    assert all(alarmed > 0.5 for _, alarmed in of_rules.values())
