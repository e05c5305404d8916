"""gpuscale's rule and the usual ones on the same simulated nights."""

from collections.abc import Mapping, Sequence
from itertools import product

from msgspec.structs import replace

from gpuscale.base.grouping import by_key
from gpuscale.judge.compare import compare
from gpuscale.records import EntryKey, Results
from validation.rules import USUAL_RULES, Runs
from validation.scenarios import ALLOCATION_DEVIATION, LOSSES
from validation.simulated_machine import Loss, LossKind, Scenario, SimulatedMachine, recorded
from validation.simulation import (
    OWN_RULE,
    Chunk,
    Judge,
    Outcome,
    Tally,
    alarms_of,
    judged_in_chunks,
    nights_of,
    outcomes_of,
    tally_of,
)

CURRENT_RUNS = (2, 3, 5)
MACHINES = tuple(
    SimulatedMachine(
        run_deviation=run_deviation, allocation_deviation=ALLOCATION_DEVIATION, peculiarity=name
    )
    for name, run_deviation in (
        ("Quiet GPU node", 0.0026),
        ("Noisy GPU node", 0.02),
        ("Shared CPU machine", 0.05),
    )
)
CHOICES = {f"{significance:.1%}": significance for significance in (0.001, 0.005, 0.01, 0.02)}
"""Significances that a site may choose, keyed by their names in tables."""
CHOICE_RUN_DEVIATIONS = (0.02, 0.03, 0.05)
CHOICE_LOSSES = (0.05, 0.10, 0.15)


def validation_scenarios() -> tuple[Scenario, ...]:
    """Return scenarios of every machine and number of runs, with and without losses."""
    losses = [None, *(Loss(kind=kind, size=size) for kind, size in product(LossKind, LOSSES))]
    return tuple(
        Scenario(machine=machine, current_runs=runs, loss=loss)
        for machine, runs, loss in product(MACHINES, CURRENT_RUNS, losses)
    )


def choice_scenarios() -> tuple[Scenario, ...]:
    """Return scenarios of three noisy runs against six, without and with losses of a case."""
    losses = [None, *(Loss(kind=LossKind.EVERY_N, size=size) for size in CHOICE_LOSSES)]
    return tuple(
        Scenario(
            machine=SimulatedMachine(
                run_deviation=run_deviation, allocation_deviation=ALLOCATION_DEVIATION
            ),
            current_runs=3,
            loss=loss,
        )
        for run_deviation, loss in product(CHOICE_RUN_DEVIATIONS, losses)
    )


def compared(
    judge: Judge, scenarios: Sequence[Scenario], *, comparisons: int, seed: int
) -> tuple[Outcome, ...]:
    """Judge the same random nights by several rules, each scenario equally often.

    The result depends only on the number of comparisons and the seed.
    """
    counts = dict.fromkeys(scenarios, max(1, comparisons // len(scenarios)))
    return outcomes_of(judged_in_chunks(judge, counts, seed))


def judge_at_each_significance(chunk: Chunk) -> list[Mapping[str, Tally]]:
    found: list[Mapping[str, Tally]] = []
    for nights, tonight in nights_of(chunk):
        baseline = recorded(chunk.scenario.machine, nights)
        tallies = {}
        for name, significance in CHOICES.items():
            tolerances = replace(baseline.tolerances, significance=significance)
            comparison = compare(replace(baseline, tolerances=tolerances), [tonight])
            tallies[name] = tally_of(comparison, chunk.scenario)
        found.append(tallies)
    return found


def judge_by_every_rule(chunk: Chunk) -> list[Mapping[str, Tally]]:
    found: list[Mapping[str, Tally]] = []
    for nights, tonight in nights_of(chunk):
        before, now = _windows(nights), _windows([tonight])
        comparison = compare(recorded(chunk.scenario.machine, nights), [tonight])
        tallies = {OWN_RULE: tally_of(comparison, chunk.scenario)}
        for name, is_worse in USUAL_RULES.items():
            alarms = {key: is_worse(before[key], now[key]) for key in before}
            tallies[name] = alarms_of(alarms, chunk.scenario)
        found.append(tallies)
    return found


def _windows(results: Sequence[Results]) -> Mapping[EntryKey, Runs]:
    """Return the window times of each row, run by run; all windows have equally many steps."""
    runs = (run for result in results for run in result.runs)
    return by_key((run.key, [window.time_s for window in run.windows]) for run in runs)
