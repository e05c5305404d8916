"""How often whole comparisons err, by simulation with known truth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import baseline, measured
from statements import known

from gpuscale.judge.compare import compare
from gpuscale.records import Comparison, Finding, Verdict
from validation.scenarios import ALLOCATION_DEVIATION
from validation.simulated_machine import SimulatedMachine, log_run_times

pytestmark = pytest.mark.thorough
STEP_TIMES_S = {1: 0.100, 2: 0.105, 4: 0.110}
Slower = dict[int, float] | None
Rng = np.random.Generator


def _night(
    rng: Rng, runs: int, *, deviation: float = 0.003, quiet: bool = False, slower: Slower = None
) -> dict[int, list[float]]:
    """Draw the step times of one allocation, by number of GPUs."""
    between = 0.0 if quiet else ALLOCATION_DEVIATION
    machine = SimulatedMachine(run_deviation=deviation, allocation_deviation=between)
    times_s = np.exp(log_run_times(rng, machine, np.log(list(STEP_TIMES_S.values())), runs))
    factors = [(slower or {}).get(gpus, 1.0) for gpus in STEP_TIMES_S]
    return {gpus: (times_s[:, i] * factors[i]).tolist() for i, gpus in enumerate(STEP_TIMES_S)}


def _comparisons(
    seed: int, count: int, *, runs: tuple[int, int] = (6, 3), slower: Slower = None, **noise: Any
) -> Iterator[Comparison]:
    """Yield comparisons of random nights, of which the second may be slower."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        before = _night(rng, runs[0], **noise)
        now = _night(rng, runs[1], slower=slower, **noise)
        yield compare(baseline(before), [measured(now)])


def _verdicts(comparison: Comparison) -> dict[int, Verdict]:
    return {entry.key.gpus: entry.verdict for entry in comparison.entries}


@pytest.mark.parametrize("quiet", [False, True], ids=["allocations-differ", "same-allocation"])
@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.05])
@pytest.mark.parametrize("runs", [(6, 3), (3, 3)])
def test_equal_nights_rarely_alarm(runs: tuple[int, int], deviation: float, quiet: bool) -> None:
    found = _comparisons(11, 400, runs=runs, deviation=deviation, quiet=quiet)
    alarms = sum(Verdict.REGRESSED in _verdicts(each).values() for each in found)
    # 1% is 4 of 400; 10 or more would then come up less than once in 100 times.
    assert alarms < 10


def test_a_faster_reference_is_rarely_called_a_regression_of_the_others() -> None:
    trials = 200
    rows = [each.entries[2] for each in _comparisons(15, trials, slower={1: 0.93})]
    assert sum(row.finding is Finding.REFERENCE_FASTER for row in rows) > 0.8 * trials
    # 1% is 2 of 200; 6 or more would then come up less than twice in 100 times.
    assert sum(row.verdict is Verdict.REGRESSED for row in rows) < 6


def test_a_slightly_faster_reference_on_a_slow_night_is_rarely_called_a_scaling_loss() -> None:
    # One case of three rows, six runs against three of 0.1% deviation, nights that differ by 1%.
    found = _comparisons(21, 400, deviation=0.001, slower={1: 0.97})
    alarms = sum(_verdicts(each)[4] is Verdict.REGRESSED for each in found)
    # 2% is 8 of 400; more than 17 would then come up less than once in 400 times. S(n) alone: 5%.
    assert alarms <= 17


@pytest.mark.parametrize(("runs", "deviation"), [((6, 3), 0.003), ((6, 3), 0.02), ((4, 2), 0.01)])
def test_the_interval_of_a_change_covers_it(runs: tuple[int, int], deviation: float) -> None:
    trials, covered, truth = 400, 0, 1 / 1.03 - 1
    for each in _comparisons(16, trials, runs=runs, deviation=deviation, slower={4: 1.03}):
        change = known(each.entries[2].change)
        covered += known(change.low) <= truth <= known(change.high)
    assert covered / trials > 0.92


def test_the_stated_minimum_detectable_loss_is_detected() -> None:
    loss = known(next(_comparisons(17, 1)).entries[2].minimum_detectable_loss)
    trials = 200
    lossy = _comparisons(27, trials, slower={4: 1 / (1 - loss)})
    assert sum(_verdicts(each)[4] is Verdict.REGRESSED for each in lossy) >= 0.88 * trials


def _regressed_after(
    seed: int, trials: int, nights: int, deviation: float, slower: Slower = None
) -> Iterator[set[int]]:
    """Yield numbers of GPUs whose rows regressed in one run after nights of one run each."""
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        drawn = [_night(rng, 1, deviation=deviation) for _ in range(nights)]
        times = {gpus: [night[gpus][0] for night in drawn] for gpus in STEP_TIMES_S}
        before = baseline(times, allocations=[f"night{i}" for i in range(nights)])
        now = measured(_night(rng, 1, deviation=deviation, slower=slower))
        verdicts = _verdicts(compare(before, [now]))
        yield {gpus for gpus, verdict in verdicts.items() if verdict is Verdict.REGRESSED}


@pytest.mark.parametrize(
    ("nights", "deviation"),
    [(2, 0.003), (2, 0.05), (3, 0.003), (3, 0.05), (4, 0.05), (6, 0.003), (6, 0.05)],
)
def test_equal_nights_with_a_known_spread_rarely_alarm(nights: int, deviation: float) -> None:
    assert sum(map(bool, _regressed_after(18, 400, nights, deviation))) < 10


def test_three_nights_of_one_run_each_tell_a_loss_of_20_percent() -> None:
    slower = dict.fromkeys(STEP_TIMES_S, 1 / 0.8)
    found = sum(4 in rows for rows in _regressed_after(20, 200, 3, 0.003, slower))
    assert found >= 0.85 * 200
