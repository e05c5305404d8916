"""How often whole comparisons err, by simulation with known truth."""

import math
from collections import Counter

import numpy as np
import pytest
from builders import baseline, measured

from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, Comparison, Finding, Results, Verdict
from validation.scenarios import ALLOCATION_DEVIATION
from validation.simulated_machine import SimulatedMachine, log_run_times

pytestmark = pytest.mark.thorough
STEP_TIMES_S = {1: 0.100, 2: 0.105, 4: 0.110}


def _night(
    rng: np.random.Generator,
    runs: int,
    *,
    deviation: float,
    slower: dict[int, float] | None = None,
    quiet: bool = False,
) -> dict[int, list[float]]:
    """One allocation's step times by number of GPUs."""
    machine = SimulatedMachine(
        run_deviation=deviation, allocation_deviation=0.0 if quiet else ALLOCATION_DEVIATION
    )
    times_s = np.exp(log_run_times(rng, machine, np.log(list(STEP_TIMES_S.values())), runs))
    return {
        gpus: (times_s[:, i] * (slower or {}).get(gpus, 1.0)).tolist()
        for i, gpus in enumerate(STEP_TIMES_S)
    }


def _pair(
    rng: np.random.Generator,
    runs: tuple[int, int],
    *,
    deviation: float,
    slower: dict[int, float] | None = None,
    quiet: bool = False,
) -> tuple[Baseline, Results]:
    before = _night(rng, runs[0], deviation=deviation, quiet=quiet)
    now = _night(rng, runs[1], deviation=deviation, slower=slower, quiet=quiet)
    return baseline(before), measured(now)


def _verdicts(comparison: Comparison) -> dict[int, Verdict]:
    return {entry.key.gpus: entry.verdict for entry in comparison.entries}


@pytest.mark.parametrize("quiet", [False, True], ids=["allocations-differ", "same-allocation"])
@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.05])
@pytest.mark.parametrize("runs", [(6, 3), (3, 3)])
def test_equal_nights_rarely_alarm(runs: tuple[int, int], deviation: float, quiet: bool) -> None:
    rng = np.random.default_rng(11)
    trials = 400
    alarms = 0
    for _ in range(trials):
        before, now = _pair(rng, runs, deviation=deviation, quiet=quiet)
        alarms += Verdict.REGRESSED in _verdicts(compare(before, [now])).values()
    # 1% is 4 of 400; 10 or more would then come up less than once in 100 times.
    assert alarms < 10


def test_identical_quiet_nights_are_ok_and_not_only_inconclusive() -> None:
    rng = np.random.default_rng(12)
    counts: Counter[Verdict] = Counter()
    for _ in range(200):
        before, now = _pair(rng, (6, 3), deviation=0.003)
        counts.update(_verdicts(compare(before, [now])).values())
    assert counts[Verdict.OK] > 0.9 * counts.total()


def test_a_scaling_loss_of_5_percent_is_found_and_named() -> None:
    rng = np.random.default_rng(13)
    trials = 200
    found = wrong = 0
    for _ in range(trials):
        before, now = _pair(rng, (6, 3), deviation=0.003, slower={4: 1 / 0.95})
        comparison = compare(before, [now])
        row = comparison.entries[2]
        found += row.verdict is Verdict.REGRESSED and row.finding is Finding.SCALING_LOSS
        wrong += _verdicts(comparison)[2] is Verdict.REGRESSED
    assert found > 0.85 * trials
    assert wrong < 6


def test_a_slower_gpu_is_found_and_named() -> None:
    rng = np.random.default_rng(14)
    trials = 150
    found = 0
    for _ in range(trials):
        slower = dict.fromkeys(STEP_TIMES_S, 1 / 0.93)
        before, now = _pair(rng, (6, 3), deviation=0.003, slower=slower)
        row = compare(before, [now]).entries[2]
        found += row.verdict is Verdict.REGRESSED and row.finding is Finding.SINGLE_GPU_SLOWDOWN
    assert found > 0.9 * trials


def test_a_faster_reference_is_rarely_called_a_regression_of_the_others() -> None:
    rng = np.random.default_rng(15)
    trials = 200
    named = alarms = 0
    for _ in range(trials):
        before, now = _pair(rng, (6, 3), deviation=0.003, slower={1: 0.93})
        row = compare(before, [now]).entries[2]
        named += row.finding is Finding.REFERENCE_FASTER
        alarms += row.verdict is Verdict.REGRESSED
    assert named > 0.8 * trials
    # 1% is 2 of 200; 6 or more would then come up less than twice in 100 times.
    assert alarms < 6


def test_a_slightly_faster_reference_on_a_slow_night_is_rarely_called_a_scaling_loss() -> None:
    # One case of three rows, six runs against three of 0.1% deviation, nights that differ by 1%.
    rng = np.random.default_rng(21)
    trials = 400
    alarms = 0
    for _ in range(trials):
        before, now = _pair(rng, (6, 3), deviation=0.001, slower={1: 0.97})
        alarms += _verdicts(compare(before, [now]))[4] is Verdict.REGRESSED
    # 2% is 8 of 400; more than 17 would then come up less than once in 400 times. S(n) alone: 5%.
    assert alarms <= 17


@pytest.mark.parametrize(("runs", "deviation"), [((6, 3), 0.003), ((6, 3), 0.02), ((4, 2), 0.01)])
def test_the_interval_of_a_change_covers_it(runs: tuple[int, int], deviation: float) -> None:
    rng = np.random.default_rng(16)
    trials = 400
    covered = 0
    for _ in range(trials):
        before, now = _pair(rng, runs, deviation=deviation, slower={4: 1.03})
        row = compare(before, [now], gpus=[4]).entries[0]
        truth = 1 / 1.03 - 1
        assert row.change is not None
        assert row.change.low is not None
        assert row.change.high is not None
        covered += row.change.low <= truth <= row.change.high
    assert covered / trials > 0.92


def test_the_stated_minimum_detectable_loss_is_detected() -> None:
    rng = np.random.default_rng(17)
    before, now = _pair(rng, (6, 3), deviation=0.003)
    loss = compare(before, [now]).entries[2].minimum_detectable_loss
    assert loss is not None
    trials = 200
    found = 0
    for _ in range(trials):
        before, now = _pair(rng, (6, 3), deviation=0.003, slower={4: 1 / (1 - loss)})
        found += _verdicts(compare(before, [now]))[4] is Verdict.REGRESSED
    assert found >= 0.88 * trials


@pytest.mark.parametrize(("runs", "deviation"), [((6, 3), 0.05), ((6, 2), 0.05), ((6, 3), 0.1)])
def test_a_noisy_row_rarely_regresses(runs: tuple[int, int], deviation: float) -> None:
    rng = np.random.default_rng(19)
    alarms = 0
    for _ in range(400):
        before, now = (
            {
                gpus: [STEP_TIMES_S[gpus] * math.exp(x) for x in rng.normal(0, spread, count)]
                for gpus, spread in ((1, 0.002), (4, deviation))
            }
            for count in runs
        )
        comparison = compare(baseline(before), [measured(now)])
        alarms += _verdicts(comparison)[4] is Verdict.REGRESSED
    # 1% is 4 of 400; 10 or more would then come up less than once in 100 times.
    assert alarms < 10


def _nights(rng: np.random.Generator, count: int, deviation: float) -> Baseline:
    times: dict[int, list[float]] = {gpus: [] for gpus in STEP_TIMES_S}
    names = [f"night{i}" for i in range(count)]
    for _ in names:
        for gpus, (time_s,) in _night(rng, 1, deviation=deviation).items():
            times[gpus].append(time_s)
    return baseline(times, allocations=names)


@pytest.mark.parametrize(
    ("nights", "deviation"),
    [(2, 0.003), (2, 0.05), (3, 0.003), (3, 0.05), (4, 0.05), (6, 0.003), (6, 0.05)],
)
def test_equal_nights_with_a_known_spread_rarely_alarm(nights: int, deviation: float) -> None:
    rng = np.random.default_rng(18)
    trials = 400
    alarms = 0
    for _ in range(trials):
        before = _nights(rng, nights, deviation=deviation)
        now = measured(_night(rng, 1, deviation=deviation))
        alarms += Verdict.REGRESSED in _verdicts(compare(before, [now])).values()
    assert alarms < 10


def test_three_nights_of_one_run_each_tell_a_loss_of_20_percent() -> None:
    rng = np.random.default_rng(20)
    trials = 200
    found = 0
    for _ in range(trials):
        before = _nights(rng, 3, deviation=0.003)
        slower = dict.fromkeys(STEP_TIMES_S, 1 / 0.8)
        now = measured(_night(rng, 1, deviation=0.003, slower=slower))
        found += _verdicts(compare(before, [now]))[4] is Verdict.REGRESSED
    assert found >= 0.85 * trials
