"""What simulates the judgement: rates, the rules of other tools, nights, and the page."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.utils import PercentageRegressionCheck
from statements import known

from gpuscale.records import Estimate
from validation import rule_comparison, simulation
from validation.page import main
from validation.rates import Rate, rate_of
from validation.rule_comparison import CHOICES
from validation.rules import USUAL_RULES, asv_worse, out_of_reference, percentage_check
from validation.scenarios import Promise, lossy_scenarios, promises, quiet_scenarios
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
from validation.simulation import (
    Figure,
    Outcome,
    Standing,
    chunks_of,
    judge_by_gpuscale,
    outcomes_of,
)


def test_rates_have_clopper_and_pearsons_interval_and_rows_that_err_together_count_once() -> None:
    rate = rate_of([(1, 1)] * 3 + [(0, 1)] * 7)
    assert (rate.count, rate.of, rate.rate.value) == (3, 10, 0.3)
    # Clopper and Pearson (1934), 3 of 10.
    assert (rate.rate.low, rate.rate.high) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    together = rate_of([(8, 8)] * 3 + [(0, 8)] * 7)
    assert (together.count, together.of, together.rate) == (24, 80, rate.rate)


def test_the_interval_covers_the_truth_where_rows_err_together() -> None:
    rng = np.random.default_rng(3)
    truth, trials, covered = 0.05, 400, 0
    for _ in range(trials):
        # Beta-binomial: in most comparisons no row errs, in few many do.
        chances = rng.beta(truth * 0.5, (1 - truth) * 0.5, 150)
        rate = rate_of([(int(count), 8) for count in rng.binomial(8, chances)]).rate
        covered += known(rate.low) <= truth <= known(rate.high)
    assert covered / trials > 0.92


@pytest.mark.parametrize("now_s", [0.9, 1.0, 1.04, 1.05, 1.0501, 1.06, 2.0])
def test_the_percentage_check_is_that_of_pytest_benchmark_itself(now_s: float) -> None:
    check: Any = PercentageRegressionCheck
    original = check("median", 5).fails({"median": now_s}, {"median": 1.0})
    assert percentage_check([[1.0]], [[now_s]], percentage=5) == bool(original)


def test_asv_needs_the_factor_and_significance_by_an_exact_p_up_to_20_samples() -> None:
    def is_worse(before: int, after: int, ratio: float, p: float = 0.002) -> bool:
        """Whether samples without overlap are, of this ratio."""
        first = [1 + i * 1e-6 for i in range(before)]
        second = [ratio + i * 1e-6 for i in range(after)]
        return asv_worse([first], [second], factor=1.1, p_threshold=p)

    # Two samples of 6 and 7 without overlap: p = 2 / C(13, 6) = 0.00117.
    assert [is_worse(6, 7, ratio) for ratio in (1.2, 1.09, 0.8)] == [True, False, False]
    # Of 6 and 6: p = 2 / C(12, 6) = 0.00216, although 1 / C(12, 6) lets the test be tried.
    assert not is_worse(6, 6, 1.2)
    p = 2 / math.comb(40, 20)
    assert [is_worse(20, 20, 1.2, p * factor) for factor in (1.01, 0.99)] == [True, False]


@pytest.mark.parametrize(
    ("runs_s", "fails"),
    [([1.05, 1.0], False), ([1.051, 1.0], True), ([0.949, 1.0], True), ([0.951, 1.049], False)],
)
def test_reframe_fails_if_any_run_lies_outside(runs_s: list[float], fails: bool) -> None:
    baseline = [[1.0], [0.5], [1.5]]
    assert out_of_reference(baseline, [[time_s] for time_s in runs_s], tolerance=0.05) == fails


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


QUIET_GPU = SimulatedMachine(run_deviation=0.003, allocation_deviation=0.01)


def _outcome(scenario: Scenario, comparisons: int) -> Outcome:
    chunks = chunks_of({scenario: comparisons}, seed=4)
    judged = [tallies for chunk in chunks for tallies in judge_by_gpuscale(chunk)]
    (outcome,) = outcomes_of({scenario: judged})
    return outcome


def test_rows_with_and_without_a_loss_are_counted_apart() -> None:
    loss = Loss(kind=LossKind.LARGEST_N, size=0.10)
    outcome = _outcome(Scenario(machine=QUIET_GPU, current_runs=3, loss=loss), 25)
    assert outcome.false_alarms.of == 25 * 7
    assert (known(outcome.found).count, known(outcome.found).of) == (25, 25)
    assert known(outcome.named).rate.value > 0.9
    assert outcome.false_alarms.rate.value < 0.1


@pytest.mark.parametrize(
    ("value", "low", "high", "at_most", "standing"),
    [
        (0.004, 0.001, 0.009, True, Standing.MET),
        (0.004, 0.001, 0.012, True, Standing.MET_UNSURE),
        (0.012, 0.009, 0.02, True, Standing.NOT_MET_UNSURE),
        (0.02, 0.012, 0.03, True, Standing.NOT_MET),
        (0.004, 0.001, 0.009, False, Standing.NOT_MET),
        (0.009, 0.004, 0.012, False, Standing.NOT_MET_UNSURE),
        (0.012, 0.009, 0.02, False, Standing.MET_UNSURE),
        (0.02, 0.012, 0.03, False, Standing.MET),
    ],
)
def test_a_figure_says_whether_it_is_met_and_whether_that_is_sure(
    value: float, low: float, high: float, at_most: bool, standing: Standing
) -> None:
    rate = Rate(count=0, of=1, rate=Estimate(value=value, low=low, high=high))
    promise = Promise(statement="", limit=0.01, at_most=at_most, scenarios=())
    figure = Figure(promise=promise, found=rate)
    assert figure.standing is standing
    assert figure.is_met == standing.value.startswith("met")


@pytest.mark.thorough
def test_the_command_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    promised = {scenario for promise in promises() for scenario in promise.scenarios}
    settings = {(each.machine, each.current_runs) for each in promised if each.loss is not None}
    lossy = [each for each in lossy_scenarios() if (each.machine, each.current_runs) in settings]
    quiet = [each for each in quiet_scenarios() if each in promised]
    monkeypatch.setattr(simulation, "quiet_scenarios", lambda: quiet)
    monkeypatch.setattr(simulation, "lossy_scenarios", lambda: lossy)
    monkeypatch.setattr(rule_comparison, "MACHINES", rule_comparison.MACHINES[:1])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    page = tmp_path / "page.md"
    assert main(["--comparisons", "1", "--seed", "3", "--page", str(page)]) in (0, 1, 3)
    text = page.read_text()
    assert capsys.readouterr().out.strip() in text
    assert "--comparisons 1 --seed 3 --page page.md" in text
    assert "$" not in text
    named = [promise.statement for promise in promises()] + [*USUAL_RULES, *CHOICES]
    assert [name for name in named if name not in text] == []
