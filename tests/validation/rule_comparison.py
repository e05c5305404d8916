"""gpuscale's rule and the usual ones on the same simulated nights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from msgspec.structs import replace

from gpuscale.judge.compare import compare
from gpuscale.records import EntryKey, Results, Verdict
from validation.rates import Rate, rate_of
from validation.rules import Runs, usual_rules
from validation.scenarios import ALLOCATION_DEVIATION, LOSSES
from validation.simulated_machine import (
    Loss,
    LossKind,
    Scenario,
    SimulatedMachine,
    recorded,
    simulated_nights,
)
from validation.simulation import Chunk, Progress, judged_in_chunks, random_streams

OWN_RULE = "gpuscale"
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
"""Significances that a site may choose, by the names of their lines in a table."""
CHOICE_RUN_DEVIATIONS = (0.02, 0.03, 0.05)
CHOICE_LOSSES = (0.05, 0.10, 0.15)
_STREAM = 1_000_000
"""Keeps these random streams apart from those of the simulation with the same seed."""

Counts = Mapping[str, tuple[int, int, int, int]]
"""Counts of a comparison by rule: rows without a loss, alarms, rows with a loss, found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """The result of one rule in one scenario."""

    rule: str
    scenario: Scenario
    alarms: Rate
    """Rows with the scenario's loss that were called worse; all rows where nothing was lost."""
    nights: Rate
    """Comparisons with at least one row called worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Several rules on the same simulated nights."""

    comparisons: int
    """For each scenario."""
    outcomes: tuple[RuleOutcome, ...]


def rule_names() -> tuple[str, ...]:
    """gpuscale's own rule, and the usual ones."""
    return (OWN_RULE, *(rule.name for rule in usual_rules()))


def validation_scenarios() -> tuple[Scenario, ...]:
    """Every machine and number of runs, without and with each loss."""
    losses = [None, *(Loss(kind=kind, size=size) for kind, size in product(LossKind, LOSSES))]
    return tuple(
        Scenario(machine=machine, current_runs=runs, loss=loss)
        for machine, runs, loss in product(MACHINES, CURRENT_RUNS, losses)
    )


def choice_scenarios() -> tuple[Scenario, ...]:
    """Three noisy runs against six of another night, without and with each loss of a case."""
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


def validate(*, comparisons: int, seed: int, processes: int, progress: Progress) -> Validation:
    """Judge the same random nights by every rule.

    Args:
        comparisons: in all, dealt out evenly, at least one for each scenario.
        seed: two validations of one seed and size give the same.
        processes: 1 is this one alone.
        progress: is told how many comparisons of how many are done.
    """
    scenarios = validation_scenarios()
    each = max(1, comparisons // len(scenarios))
    judged = judged_in_chunks(
        judge_by_every_rule, dict.fromkeys(scenarios, each), seed + _STREAM, processes, progress
    )
    return _validation(judged, rule_names())


def choose(*, comparisons: int, seed: int, processes: int, progress: Progress) -> Validation:
    """Judge the same noisy nights at each significance that a site may choose, as `validate`."""
    scenarios = choice_scenarios()
    each = max(1, comparisons // len(scenarios))
    judged = judged_in_chunks(
        judge_at_each_significance,
        dict.fromkeys(scenarios, each),
        seed + 2 * _STREAM,
        processes,
        progress,
    )
    return _validation(judged, [*CHOICES])


def _validation(judged: Mapping[Scenario, Sequence[Counts]], rules: Sequence[str]) -> Validation:
    return Validation(
        comparisons=max(map(len, judged.values())),
        outcomes=tuple(
            _outcome(rule, scenario, counts)
            for scenario, counts in judged.items()
            for rule in rules
        ),
    )


def judge_at_each_significance(chunk: Chunk) -> list[Counts]:
    """The judgement of the comparisons of a chunk at each significance."""
    found: list[Counts] = []
    for rng in random_streams(chunk):
        nights, tonight = simulated_nights(rng, chunk.scenario)
        baseline = recorded(chunk.scenario.machine, nights)
        counts = {}
        for name, significance in CHOICES.items():
            tolerances = replace(baseline.tolerances, significance=significance)
            comparison = compare(replace(baseline, tolerances=tolerances), [tonight])
            raised = {each.key: each.verdict is Verdict.REGRESSED for each in comparison.entries}
            counts[name] = _counts(chunk.scenario, raised)
        found.append(counts)
    return found


def judge_by_every_rule(chunk: Chunk) -> list[Counts]:
    """Judge the comparisons of a chunk by every rule."""
    found: list[Counts] = []
    for rng in random_streams(chunk):
        nights, tonight = simulated_nights(rng, chunk.scenario)
        before, now = _windows(nights), _windows([tonight])
        comparison = compare(recorded(chunk.scenario.machine, nights), [tonight])
        verdicts = {entry.key: entry.verdict for entry in comparison.entries}
        alarms = {OWN_RULE: {key: verdicts[key] is Verdict.REGRESSED for key in before}}
        for rule in usual_rules():
            alarms[rule.name] = {key: rule.alarms(before[key], now[key]) for key in before}
        found.append({name: _counts(chunk.scenario, raised) for name, raised in alarms.items()})
    return found


def _windows(results: Sequence[Results]) -> dict[EntryKey, Runs]:
    """Window times by row; steps per window are the same everywhere, so they stay in."""
    found: dict[EntryKey, list[list[float]]] = {}
    for result in results:
        for run in result.runs:
            found.setdefault(run.key, []).append([window.time_s for window in run.windows])
    return {**found}


def _counts(scenario: Scenario, raised: Mapping[EntryKey, bool]) -> tuple[int, int, int, int]:
    quiet: list[bool] = []
    struck: list[bool] = []
    for key, alarm in raised.items():
        (struck if scenario.strikes(key.case, key.gpus) else quiet).append(alarm)
    return len(quiet), sum(quiet), len(struck), sum(struck)


def _outcome(rule: str, scenario: Scenario, judged: Sequence[Counts]) -> RuleOutcome:
    counts = [each[rule] for each in judged]
    return RuleOutcome(
        rule=rule,
        scenario=scenario,
        alarms=rate_of(
            (alarms, quiet) if scenario.loss is None else (found, struck)
            for quiet, alarms, struck, found in counts
        ),
        nights=rate_of((int(alarms + found > 0), 1) for _, alarms, _, found in counts),
    )
