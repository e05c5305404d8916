"""Simulated nights have the spread that their world states (gpuscale/selftest/worlds.py)."""

import math

import numpy as np
import pytest
from changing import replace
from numpy.typing import NDArray

from gpuscale.records.simulation import BaselineNights, Loss, LossKind, Scenario, World
from gpuscale.selftest.worlds import (
    GPUS,
    OUTLYING_RUN,
    OUTLYING_WINDOW,
    STRUCK_CASE,
    WINDOWS,
    log_window_times,
    recorded,
    simulated_nights,
)

QUIET = World(run_deviation=0.01, baseline=BaselineNights.ONE_NIGHT, window_deviation=0.02)


def _log_times(world: World, runs: int, seed: int = 1) -> NDArray[np.float64]:
    return log_window_times(np.random.default_rng(seed), world, runs)


def test_the_deviation_between_runs_is_the_stated_one() -> None:
    medians = np.median(_log_times(QUIET, 4000), axis=-1)
    assert medians.std(axis=0).mean() == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_windows_have_the_stated_deviation_and_autocorrelation(rho: float) -> None:
    logs = _log_times(replace(QUIET, autocorrelation=rho), 4000)
    # Differences, because the windows of a run are centred on their own median.
    one = np.diff(logs, axis=-1).var()
    two = (logs[..., 2:] - logs[..., :-2]).var()
    assert two / one - 1 == pytest.approx(rho, abs=0.02)
    assert one == pytest.approx(2 * 0.02**2 * (1 - rho), rel=0.03)


def test_allocations_differ_by_the_stated_deviation_and_speedups_by_half_of_it() -> None:
    world = World(run_deviation=0.0, baseline=BaselineNights.ONE_NIGHT, allocation_deviation=0.02)
    nights = np.array([_log_times(world, 1, seed)[0, :, :, 0] for seed in range(3000)])
    assert nights.std(axis=0).mean() == pytest.approx(0.02, rel=0.05)
    speedups = nights[:, :, :1] - nights[:, :, 1:]
    assert speedups.std(axis=0).mean() == pytest.approx(0.01, rel=0.05)


def test_outlying_windows_and_runs_are_as_many_and_as_slow_as_stated() -> None:
    still = World(run_deviation=0.0, baseline=BaselineNights.ONE_NIGHT)
    windows = _log_times(replace(still, outlying_windows=0.1), 500)
    slowed = windows - windows.min(axis=(0, 3), keepdims=True)
    assert (slowed > 0).mean() == pytest.approx(0.1, abs=0.01)
    assert slowed.max() == pytest.approx(math.log1p(OUTLYING_WINDOW))
    runs = _log_times(replace(still, outlying_runs=0.05), 2000)[..., 0]
    slow = runs - runs.min(axis=0)
    assert (slow > 0).mean() == pytest.approx(0.05, abs=0.01)
    assert slow.max() == pytest.approx(math.log1p(OUTLYING_RUN))


def test_drift_slows_the_last_run_of_a_night_and_leaves_its_mean() -> None:
    still = World(run_deviation=0.0, baseline=BaselineNights.ONE_NIGHT)
    drifting = _log_times(replace(still, drift=0.03), 100)
    moved = drifting - _log_times(still, 100)
    assert moved[-1, 0, 0, 0] - moved[0, 0, 0, 0] == pytest.approx(math.log1p(0.03) * 0.99)
    assert moved.mean() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "struck"), [(LossKind.EVERY_N, set(GPUS)), (LossKind.LARGEST_N, {8})]
)
def test_a_loss_strikes_one_case_where_it_should_and_by_its_size(
    kind: LossKind, struck: set[int]
) -> None:
    scenario = Scenario(world=QUIET, current_runs=2)
    lossy = replace(scenario, loss=Loss(kind=kind, size=0.05))
    _, whole = simulated_nights(np.random.default_rng(5), scenario)
    _, slower = simulated_nights(np.random.default_rng(5), lossy)
    for before, now in zip(whole.runs, slower.runs, strict=True):
        is_struck = now.configuration.case == STRUCK_CASE and now.gpus in struck
        ratio = before.median_step_time_s / now.median_step_time_s
        assert ratio == pytest.approx(0.95 if is_struck else 1.0)


@pytest.mark.parametrize(
    ("nights", "allocations"),
    [
        (BaselineNights.SAME_ALLOCATION, 1),
        (BaselineNights.ONE_NIGHT, 1),
        (BaselineNights.SIX_NIGHTS, 6),
    ],
)
def test_a_baseline_has_six_runs_of_each_entry_from_its_nights(
    nights: BaselineNights, allocations: int
) -> None:
    world = replace(QUIET, baseline=nights)
    before, tonight = simulated_nights(
        np.random.default_rng(6), Scenario(world=world, current_runs=3)
    )
    baseline = recorded(world, before)
    assert len(before) == allocations
    assert {len(entry.runs) for entry in baseline.measured} == {6}
    assert {len({run.allocation for run in entry.runs}) for entry in baseline.measured} == {
        allocations
    }
    same = nights is BaselineNights.SAME_ALLOCATION
    assert (tonight.allocation in {result.allocation for result in before}) == same
    assert len(tonight.runs) == 3 * len(baseline.measured)
    assert all(len(run.windows) == WINDOWS for run in tonight.runs)


def test_windows_that_are_not_steady_give_no_number_as_in_a_real_run() -> None:
    world = replace(QUIET, outlying_windows=0.4)
    _, tonight = simulated_nights(np.random.default_rng(7), Scenario(world=world, current_runs=5))
    failures = [run.failure for run in tonight.runs if run.failure is not None]
    assert failures
    assert {failure.kind for failure in failures} == {"unsteady"}
