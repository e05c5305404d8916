"""`gpuscale selftest --simulate`: small seeded simulations of the judgement."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from measuring import heed_interrupts

from gpuscale.cli import main
from gpuscale.records import Estimate
from gpuscale.records.simulation import (
    BaselineNights,
    Figure,
    Loss,
    LossKind,
    Outcome,
    Rate,
    RuleOutcome,
    Scenario,
    Simulation,
    Standing,
    Validation,
    World,
)
from gpuscale.report.simulation_text import simulation_text
from gpuscale.report.validation_page import validation_page
from gpuscale.report.validation_plot import validation_svg
from gpuscale.selftest.parallel import in_parallel
from gpuscale.selftest.rates import rate_of
from gpuscale.selftest.rules import usual_rules
from gpuscale.selftest.scenarios import (
    false_alarm_promises,
    lossy_scenarios,
    power_promises,
    quiet_scenarios,
    shares,
)
from gpuscale.selftest.simulation import chunks_of, judge_chunk, outcome_of
from gpuscale.selftest.validation import OWN_RULE, judge_by_every_rule, validation_scenarios

QUIET_GPU = World(run_deviation=0.003, baseline=BaselineNights.ONE_NIGHT, allocation_deviation=0.01)


def _outcome(scenario: Scenario, comparisons: int) -> Outcome:
    chunks = chunks_of({scenario: comparisons}, seed=4)
    return outcome_of(scenario, [tally for chunk in chunks for tally in judge_chunk(chunk)])


def test_rows_with_and_without_a_loss_are_counted_apart() -> None:
    loss = Loss(kind=LossKind.LARGEST_N, size=0.10)
    outcome = _outcome(Scenario(world=QUIET_GPU, current_runs=3, loss=loss), 25)
    assert outcome.false_alarms.of == 25 * 7
    assert outcome.found is not None
    assert outcome.named is not None
    assert (outcome.found.count, outcome.found.of) == (25, 25)
    assert outcome.named.rate.value > 0.9
    assert outcome.false_alarms.rate.value < 0.1


def test_a_simulation_sees_false_alarms_where_they_must_come() -> None:
    # Nights that differ by 3% where the baseline declares 1%.
    world = World(run_deviation=0.003, baseline=BaselineNights.ONE_NIGHT, allocation_deviation=0.03)
    undeclared = _outcome(Scenario(world=world, current_runs=3), 30)
    promised = _outcome(Scenario(world=QUIET_GPU, current_runs=3), 30)
    assert undeclared.false_alarms.rate.value > 0.1
    # At a true rate of 1%, 12 or more alarms in 240 rows would be rare also where rows of a
    # night err together.
    assert promised.false_alarms.count < 12
    assert promised.passed.rate.value > 0.8


def test_the_same_seed_gives_the_same_on_any_number_of_processes() -> None:
    chunks = chunks_of({Scenario(world=QUIET_GPU, current_runs=3): 22}, seed=8)
    alone = list(in_parallel(judge_chunk, chunks, 1))
    assert list(in_parallel(judge_chunk, chunks, 2)) == alone
    other = chunks_of({Scenario(world=QUIET_GPU, current_runs=3): 22}, seed=9)
    assert [judged for _, judged in in_parallel(judge_chunk, other, 1)] != [
        judged for _, judged in alone
    ]


def test_every_promise_is_about_scenarios_that_are_simulated() -> None:
    simulated = {*quiet_scenarios(), *lossy_scenarios()}
    promises = (*false_alarm_promises(), *power_promises())
    assert {scenario for promise in promises for scenario in promise.scenarios} <= simulated
    assert len({promise.statement for promise in promises}) == len(promises)


def test_promised_scenarios_get_more_comparisons_and_all_get_some() -> None:
    dealt = shares(quiet_scenarios(), false_alarm_promises(), weight=4, total=10_000)
    counts = Counter(dealt.values())
    assert set(dealt) == set(quiet_scenarios())
    assert sum(dealt.values()) == pytest.approx(10_000, rel=0.01)
    assert max(counts) == pytest.approx(4 * min(counts), rel=0.02)
    assert min(shares(quiet_scenarios(), (), weight=4, total=1).values()) == 1


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
    figure = Figure(statement="", limit=0.01, at_most=at_most, found=rate)
    assert figure.standing is standing
    assert figure.is_met == standing.value.startswith("met")


def _rate(count: int, of: int) -> Rate:
    return rate_of([(1, 1)] * count + [(0, 1)] * (of - count))


def _simulation() -> Simulation:
    """Every scenario with the same rates, and every promise."""

    def outcome(scenario: Scenario) -> Outcome:
        lost = scenario.loss is not None
        return Outcome(
            scenario=scenario,
            comparisons=50,
            false_alarms=_rate(1, 400),
            false_alarm_comparisons=_rate(1, 50),
            passed=_rate(300, 400),
            found=_rate(40, 50) if lost else None,
            named=_rate(20, 40) if lost else None,
        )

    promises = (*false_alarm_promises(), *power_promises())
    return Simulation(
        seed=2,
        quiet=tuple(outcome(scenario) for scenario in quiet_scenarios()),
        lossy=tuple(outcome(scenario) for scenario in lossy_scenarios()),
        figures=tuple(
            Figure(
                statement=promise.statement,
                limit=promise.limit,
                at_most=promise in false_alarm_promises(),
                found=_rate(1, 400),
            )
            for promise in promises
        ),
        wall_s=61.0,
    )


RULES = (OWN_RULE, *(rule.name for rule in usual_rules()))


def _validation() -> Validation:
    return Validation(
        seed=2,
        comparisons=50,
        outcomes=tuple(
            RuleOutcome(rule=rule, scenario=scenario, alarms=_rate(3, 50), nights=_rate(9, 50))
            for scenario in validation_scenarios()
            for rule in RULES
        ),
    )


def test_the_text_has_every_figure_and_scenario() -> None:
    simulation = _simulation()
    text = simulation_text(simulation)
    assert text.splitlines()[0] == (
        f"{50 * len(simulation.quiet):,} comparisons without a loss and "
        f"{50 * len(simulation.lossy):,} with one, seed 2, in 61.0 s"
    )
    for figure in simulation.figures:
        assert figure.statement in text
    for outcome in simulation.quiet:
        assert outcome.scenario.world.peculiarity in text
    assert text.count("0.25 % [0.01, 1.38]") == len(simulation.quiet)
    assert text.count("80.0 % [66, 90]") == len(simulation.lossy)
    assert text.splitlines()[-1] == "10 of 16 promised figures met"


def test_the_page_has_every_figure_scenario_and_rule() -> None:
    simulation, validation = _simulation(), _validation()
    page = validation_page(simulation, validation, command="gpuscale …", picture="some.svg")
    for figure in simulation.figures:
        assert figure.statement in page
    assert page.count("0.25 % [0.01, 1.38]") == len(simulation.quiet)
    assert page.count("80.0 % [66, 90]") == len(simulation.lossy)
    for rule in RULES:
        # For each world and number of runs.
        assert len(re.findall(rf"^\| . : 6 +\| {re.escape(rule)} ", page, re.MULTILINE)) == 9
    assert "(some.svg)" in page
    assert "$" not in page


def test_the_picture_is_the_same_for_the_same_validation() -> None:
    pytest.importorskip("matplotlib")
    picture = validation_svg(_validation())
    assert picture == validation_svg(_validation())
    assert "<dc:date>" not in picture
    for rule in RULES:
        assert rule.replace("<", "&lt;") in picture


def test_all_rules_judge_the_same_nights() -> None:
    loss = Loss(kind=LossKind.EVERY_N, size=0.10)
    scenario = Scenario(world=QUIET_GPU, current_runs=3, loss=loss)
    (chunk,) = chunks_of({scenario: 6}, seed=4)
    judged = judge_by_every_rule(chunk)
    tallies = judge_chunk(chunk)
    assert [counts[OWN_RULE] for counts in judged] == [
        (tally.quiet_rows, tally.alarms, tally.struck_rows, tally.found) for tally in tallies
    ]
    for counts in judged:
        assert set(counts) == set(RULES)
        # 10% on a quiet machine: 5% is exceeded on each of the 4 rows.
        assert counts["pytest-benchmark, median:5%"] == (4, 0, 4, 4)


COMMAND = [sys.executable, "-m", "gpuscale", "selftest", "--simulate"]


def test_the_command_prints_what_it_promised_as_json() -> None:
    answer = subprocess.run(
        [*COMMAND, "--comparisons", "1", "--seed", "3", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(answer.stdout)
    assert (document["format"], document["version"]) == ("gpuscale-simulation", 1)
    met = [figure["is_met"] for figure in document["figures"]]
    surely_not = any(figure["standing"] == "not met" for figure in document["figures"])
    assert answer.returncode == (0 if all(met) else 1 if surely_not else 3)
    assert {each["comparisons"] for each in document["quiet"]} == {1}
    assert answer.stderr == ""


@pytest.mark.parametrize("arguments", [["--comparisons", "0"], ["--seed", "-1"]])
def test_impossible_sizes_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", "--simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"gpuscale: {arguments[0]}: ")


def test_a_page_without_matplotlib_is_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "validation.md"
    assert main(["selftest", "--simulate", "--validation", str(page)]) == 2
    assert "pip install '.[plots]'" in capsys.readouterr().err
    assert not page.exists()


def _workers(pid: int) -> list[int]:
    """The children that have computed for half a second: past their start, unlike the tracker."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [
        int(child)
        for child in path.read_text(encoding="ascii").split()
        if int(Path(f"/proc/{child}/stat").read_text(encoding="ascii").split()[13])
        >= os.sysconf("SC_CLK_TCK") / 2
    ]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_simulation_leaves_no_process_and_no_traceback(sent: signal.Signals) -> None:
    simulation = subprocess.Popen(
        [*COMMAND, "--comparisons", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 30
    while len(_workers(simulation.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    if sent is signal.SIGINT:
        # As a terminal does: to the workers as well.
        os.killpg(simulation.pid, sent)
    else:
        os.kill(simulation.pid, sent)
    # Ends only when the last process that holds the pipes has ended.
    out, err = simulation.communicate(timeout=30)
    assert simulation.returncode == (130 if sent is signal.SIGINT else -sent)
    assert (out, err) == ("", "")
