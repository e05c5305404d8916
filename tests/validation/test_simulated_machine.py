"""Simulated nights have the spread that their machine states."""

import math
from dataclasses import replace

import numpy as np
import pytest

from validation.simulated_machine import (
    GPUS,
    OUTLYING_RUN,
    OUTLYING_WINDOW,
    STRUCK_CASE,
    Logs,
    Loss,
    LossKind,
    Scenario,
    SimulatedMachine,
    log_window_times,
    simulated_nights,
)

QUIET = SimulatedMachine(run_deviation=0.01, window_deviation=0.02)
STILL = SimulatedMachine(run_deviation=0.0)


def _log_times(machine: SimulatedMachine, runs: int, seed: int = 1) -> Logs:
    return log_window_times(np.random.default_rng(seed), machine, runs)


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
    differing = replace(STILL, allocation_deviation=0.02)
    nights = np.array([_log_times(differing, 1, seed)[0, :, :, 0] for seed in range(3000)])
    assert nights.std(axis=0).mean() == pytest.approx(0.02, rel=0.05)
    speedups = nights[:, :, :1] - nights[:, :, 1:]
    assert speedups.std(axis=0).mean() == pytest.approx(0.01, rel=0.05)


def test_outlying_windows_and_runs_are_as_many_and_as_slow_as_stated() -> None:
    windows = _log_times(replace(STILL, outlying_windows=0.1), 500)
    slowed = windows - windows.min(axis=(0, 3), keepdims=True)
    assert (slowed > 0).mean() == pytest.approx(0.1, abs=0.01)
    assert slowed.max() == pytest.approx(math.log1p(OUTLYING_WINDOW))
    runs = _log_times(replace(STILL, outlying_runs=0.05), 2000)[..., 0]
    slow = runs - runs.min(axis=0)
    assert (slow > 0).mean() == pytest.approx(0.05, abs=0.01)
    assert slow.max() == pytest.approx(math.log1p(OUTLYING_RUN))


@pytest.mark.parametrize(
    ("kind", "struck"), [(LossKind.EVERY_N, set(GPUS)), (LossKind.LARGEST_N, {8})]
)
def test_a_loss_strikes_one_case_by_its_size(kind: LossKind, struck: set[int]) -> None:
    scenario = Scenario(machine=QUIET, current_runs=2)
    lossy = replace(scenario, loss=Loss(kind=kind, size=0.05))
    _, whole = simulated_nights(np.random.default_rng(5), scenario)
    _, slower = simulated_nights(np.random.default_rng(5), lossy)
    for before, now in zip(whole.runs, slower.runs, strict=True):
        is_struck = now.configuration.case == STRUCK_CASE and now.gpus in struck
        ratio = before.step_time_s / now.step_time_s
        assert ratio == pytest.approx(0.95 if is_struck else 1.0)
