"""Small seeded simulations of the judgement, and the page that they are written to."""

import os
from pathlib import Path

import pytest
from statements import known

from gpuscale.records import Estimate
from validation import rule_comparison, simulation
from validation.page import main
from validation.rates import Rate
from validation.rule_comparison import CHOICES, rule_names
from validation.scenarios import Promise, lossy_scenarios, promises, quiet_scenarios
from validation.simulated_machine import Loss, LossKind, Scenario, SimulatedMachine
from validation.simulation import (
    Figure,
    Outcome,
    Standing,
    chunks_of,
    judge_by_gpuscale,
    outcomes_of,
)

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
    assert outcome.found is not None
    assert (outcome.found.count, outcome.found.of) == (25, 25)
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
    named = [promise.statement for promise in promises()] + [*rule_names(), *CHOICES]
    assert [name for name in named if name not in text] == []
