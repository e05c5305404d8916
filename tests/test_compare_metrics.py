"""Exposed communication, memory and energy: judged beside the step time."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from builders import QUIET_NOW, QUIET_THEN, Made, made_baseline, measured
from changing import replace
from statements import codes_in, known

from gpuscale.judge.compare import compare
from gpuscale.records import (
    METRICS,
    Comparison,
    EntryVerdict,
    Finding,
    MetricSpec,
    MetricVerdict,
    Tolerances,
    Verdict,
)
from gpuscale.records.baseline import ToleranceOverride

COMMUNICATION, MEMORY, ENERGY = METRICS[1:4]
THEN, NOW = QUIET_THEN, QUIET_NOW[:3]
GIB = 2**30
NOTHING: Made = {"step_time_s": 0.1}
USUAL = NOTHING | {"communication_s": 0.012, "peak_memory_bytes": 4 * GIB}
USUAL |= {"energy_per_sample_j": 0.30}


def _runs(made: Made, factors: Sequence[float]) -> list[Made]:
    """Runs whose step time, communication and energy vary; memory is the same in all."""
    powers = {"step_time_s": 1, "communication_s": 1, "energy_per_sample_j": -1}
    varied = {name: power for name, power in powers.items() if name in made}
    return [made | {n: made[n] * f**power for n, power in varied.items()} for f in factors]


def _compared(now: Made, then: Made = USUAL, tolerances: Tolerances | None = None) -> Comparison:
    before = made_baseline({2: _runs(then, THEN)}, tolerances=tolerances)
    return compare(before, [measured({2: _runs(now, NOW)})])


def _metric(row: EntryVerdict, metric: MetricSpec) -> MetricVerdict:
    (found,) = [each for each in row.metrics if each.metric is metric]
    return found


def test_a_worse_metric_regresses_a_row() -> None:
    for worse, metric, size in (
        (USUAL | {"communication_s": 0.020}, COMMUNICATION, 0.08),
        (USUAL | {"peak_memory_bytes": 5 * GIB}, MEMORY, 0.25),
        (USUAL | {"energy_per_sample_j": 0.39}, ENERGY, 0.30),
    ):
        comparison = _compared(worse)
        (row,) = comparison.entries
        assert (row.verdict, row.finding) == (Verdict.REGRESSED, metric)
        assert (row.reason.code, row.reason.facts["metric"]) == ("metric_lost", metric.name)
        assert "bounded_loss" in codes_in(row.reason)
        found = _metric(row, metric)
        assert found.verdict is Verdict.REGRESSED
        assert found.change.value == pytest.approx(size, abs=2e-3)
        assert 0 < known(found.change.low) < found.change.value < known(found.change.high)
        assert {each.verdict for each in row.metrics if each is not found} == {Verdict.OK}
        assert comparison.exit_code == 1


def test_better_metrics_pass_and_do_not_make_a_row_improved() -> None:
    better = USUAL | {"communication_s": 0.004, "peak_memory_bytes": 3 * GIB}
    better |= {"energy_per_sample_j": 0.2}
    comparison = _compared(better)
    (row,) = comparison.entries
    assert row.verdict is Verdict.OK
    assert [each.verdict for each in row.metrics] == [Verdict.IMPROVED] * 3
    assert comparison.exit_code == 0


def test_a_metric_that_one_side_lacks_fails_nothing_and_is_not_shown() -> None:
    for now, then in ((USUAL, NOTHING), (NOTHING, USUAL), (NOTHING, NOTHING)):
        (row,) = _compared(now, then).entries
        assert row.verdict is Verdict.OK
        assert row.metrics == ()


def test_slower_training_is_the_finding_also_where_it_costs_more_energy() -> None:
    slower = USUAL | {"step_time_s": 0.115, "energy_per_sample_j": 0.40}
    (row,) = _compared(slower).entries
    assert row.finding is Finding.SLOWER_TRAINING
    assert _metric(row, ENERGY).verdict is Verdict.REGRESSED


def test_constant_memory_alarms_on_one_byte_only_if_neither_margin_nor_deviation_allow_it() -> None:
    one_more = USUAL | {"peak_memory_bytes": 4 * GIB + 1}
    (row,) = _compared(one_more).entries
    assert _metric(row, MEMORY).verdict is Verdict.OK
    none = ToleranceOverride(metric="peak_memory_bytes", margin=0.0, allocation_deviation=0.0)
    for now, finding in ((one_more, MEMORY), (USUAL, None)):
        (row,) = _compared(now, tolerances=Tolerances(overrides=(none,))).entries
        assert (row.finding, row.verdict is Verdict.OK) == (finding, finding is None)


def test_exposed_communication_of_about_nothing_is_judged_as_a_part_of_the_step() -> None:
    # Ten times as much, and still nothing.
    none = USUAL | {"communication_s": -0.00001}
    (row,) = _compared(USUAL | {"communication_s": 0.0001}, none).entries
    found = _metric(row, COMMUNICATION)
    assert found.verdict is Verdict.OK
    assert found.change.value == pytest.approx(0.0011, abs=1e-4)


def test_both_values_are_those_of_the_change_where_a_night_of_the_baseline_is_left_out() -> None:
    of_nights = (0.004, 0.00405, 0.00395, 0.004, 0.0041, 0.022)
    nights = [_runs(USUAL | {"communication_s": each}, THEN[:3]) for each in of_nights]
    before = made_baseline({2: [made for night in nights for made in night]})
    runs = (replace(run, allocation=f"night {at // 3}") for at, run in enumerate(before.runs))
    now = measured({2: _runs(USUAL | {"communication_s": 0.005}, NOW)})
    (row,) = compare(replace(before, runs=tuple(runs)), [now]).entries
    found = _metric(row, COMMUNICATION)
    # The mean of all nights is 7 ms, from which it would have fallen.
    assert found.baseline.value == pytest.approx(0.004, rel=0.02)
    rise_s = found.current.value - found.baseline.value
    assert found.change.value == pytest.approx(rise_s / 0.1, rel=0.01)
    assert known(found.baseline.low) < found.baseline.value < known(found.baseline.high)


def test_an_uncertain_metric_leaves_the_row_alone_and_says_how_uncertain() -> None:
    noisy = [USUAL | {"energy_per_sample_j": 0.3 * f} for f in (0.7, 1.2, 1.0, 1.3, 0.8, 1.0)]
    now = [USUAL | {"energy_per_sample_j": 0.3 * f} for f in (0.9, 1.4, 0.8)]
    (row,) = compare(made_baseline({2: noisy}), [measured({2: now})]).entries
    assert row.verdict is Verdict.OK
    found = _metric(row, ENERGY)
    assert found.verdict is Verdict.INCONCLUSIVE


def _random(
    rng: np.random.Generator, runs: int, *, memory: Callable[[], int], noise: float, night: float
) -> dict[int, list[Made]]:
    """Runs of one night, with the declared deviation between nights and that between runs."""
    by_gpus = {}
    for gpus in (1, 2, 4):
        communication, energy = rng.normal(0, 0.005 * night), rng.normal(0, 0.02 * night)
        time = rng.normal(0, 0.01 * night)
        by_gpus[gpus] = [
            {
                "step_time_s": 0.1 * float(np.exp(time + rng.normal(0, noise))),
                "communication_s": 0.1 * float(0.1 + communication + rng.normal(0, noise)),
                "peak_memory_bytes": memory(),
                "energy_per_sample_j": 0.3 * float(np.exp(energy + rng.normal(0, noise))),
            }
            for _ in range(runs)
        ]
    return by_gpus


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.003, 0.03])
@pytest.mark.parametrize("night", [0.0, 1.0], ids=["same-allocation", "allocations-differ"])
def test_metrics_raise_no_false_alarms(noise: float, night: float) -> None:
    rng = np.random.default_rng(21)
    trials, rows, alarms = 80, 0, 0

    def memory() -> int:
        # Mostly constant; now and then a library chooses another algorithm.
        return 4 * GIB + (GIB // 16 if rng.random() < 0.1 else 0)

    for _ in range(trials):
        before = made_baseline(_random(rng, 6, memory=memory, noise=noise, night=night))
        now = measured(_random(rng, 3, memory=memory, noise=noise, night=night))
        entries = compare(before, [now]).entries
        rows += len(entries)
        alarms += sum(entry.verdict is Verdict.REGRESSED for entry in entries)
    # 1% is 2.4 of 240; 7 or more would then come up about once in 100 times.
    assert rows == 240
    assert alarms < 7
