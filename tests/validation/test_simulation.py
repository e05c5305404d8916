"""Small seeded simulations of the judgement, and the page that they are written to."""

import os
import re
from pathlib import Path

import pytest
from statements import known

from gpuscale.records import Estimate
from validation import rule_comparison, simulation
from validation.page import main, validation_page
from validation.rates import Rate, rate_of
from validation.rule_comparison import (
    CHOICES,
    choice_scenarios,
    judge_at_each_significance,
    judge_by_every_rule,
    rule_names,
    validation_scenarios,
)
from validation.scenarios import Promise, lossy_scenarios, promises, quiet_scenarios
from validation.simulated_machine import Loss, LossKind, Scenario, SimulatedMachine
from validation.simulation import (
    OWN_RULE,
    Figure,
    Outcome,
    Simulation,
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


@pytest.mark.thorough
def test_a_simulation_sees_false_alarms_where_they_must_come() -> None:
    # Nights that differ by 3% where the baseline declares 1%.
    machine = SimulatedMachine(run_deviation=0.003, allocation_deviation=0.03)
    undeclared = _outcome(Scenario(machine=machine, current_runs=3), 30)
    promised = _outcome(Scenario(machine=QUIET_GPU, current_runs=3), 30)
    assert undeclared.false_alarms.rate.value > 0.1
    # At a true rate of 1%, 12 or more alarms in 240 rows would be rare also where rows of a
    # night err together.
    assert promised.false_alarms.count < 12
    assert promised.passed.rate.value > 0.8


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


def _rate(count: int, of: int) -> Rate:
    return rate_of([(1, 1)] * count + [(0, 1)] * (of - count))


def _made(rule: str, scenario: Scenario) -> Outcome:
    """The same rates in every scenario."""
    lost = scenario.loss is not None
    return Outcome(
        rule=rule,
        scenario=scenario,
        comparisons=50,
        false_alarms=_rate(1, 400),
        false_alarm_comparisons=_rate(1, 50),
        passed=_rate(300, 400),
        found=_rate(40, 50) if lost else None,
        named=_rate(20, 40) if lost else None,
    )


def test_the_page_has_every_figure_scenario_and_rule() -> None:
    simulated = Simulation(
        seed=2,
        quiet=tuple(_made(OWN_RULE, scenario) for scenario in quiet_scenarios()),
        lossy=tuple(_made(OWN_RULE, scenario) for scenario in lossy_scenarios()),
        figures=tuple(Figure(promise=promise, found=_rate(1, 400)) for promise in promises()),
    )
    validation = [_made(rule, one) for one in validation_scenarios() for rule in rule_names()]
    choice = [_made(name, scenario) for scenario in choice_scenarios() for name in CHOICES]
    page = validation_page(simulated, validation, choice, command="python …")
    for figure in simulated.figures:
        assert figure.promise.statement in page
    for outcome in simulated.quiet:
        assert outcome.scenario.machine.peculiarity in page
    shown = [*simulated.quiet, *simulated.lossy, *validation, *choice]
    without_loss = sum(outcome.scenario.loss is None for outcome in shown)
    assert page.count("0.25 % [0.01, 1.38]") == without_loss
    assert page.count("80.0 % [66, 90]") == len(shown) - without_loss
    for rule in rule_names():
        # For each world and number of runs.
        assert len(re.findall(rf"^\| . : 6 +\| {re.escape(rule)} ", page, re.MULTILINE)) == 9
    for name in CHOICES:
        # For each noise.
        assert len(re.findall(rf"^\| . % +\| {re.escape(name)} ", page, re.MULTILINE)) == 3
    assert "10 of 16 promised figures met" in page
    assert "$" not in page


def test_a_higher_significance_finds_no_less_in_the_same_nights() -> None:
    loss = Loss(kind=LossKind.EVERY_N, size=0.10)
    machine = SimulatedMachine(run_deviation=0.03, allocation_deviation=0.01)
    (chunk,) = chunks_of({Scenario(machine=machine, current_runs=3, loss=loss): 12}, seed=4)
    for counts in judge_at_each_significance(chunk):
        found = [counts[name].found for name in CHOICES]
        assert found == sorted(found)
    totals = [
        sum(counts[name].found for counts in judge_at_each_significance(chunk)) for name in CHOICES
    ]
    assert totals[0] < totals[-1]


@pytest.mark.thorough
def test_all_rules_judge_the_same_nights() -> None:
    loss = Loss(kind=LossKind.EVERY_N, size=0.10)
    scenario = Scenario(machine=QUIET_GPU, current_runs=3, loss=loss)
    (chunk,) = chunks_of({scenario: 6}, seed=4)
    judged = judge_by_every_rule(chunk)
    alone = judge_by_gpuscale(chunk)
    assert [tallies[OWN_RULE] for tallies in judged] == [tallies[OWN_RULE] for tallies in alone]
    for tallies in judged:
        assert set(tallies) == set(rule_names())
        # 10% on a quiet machine: 5% is exceeded on each of the 4 rows.
        usual = tallies["pytest-benchmark, median:5%"]
        assert (usual.quiet_rows, usual.alarms, usual.struck_rows, usual.found) == (4, 0, 4, 4)


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
    assert capsys.readouterr().out.strip() in page.read_text()
    assert "--comparisons 1 --seed 3 --page page.md" in page.read_text()
