"""gpuscale's rule and the usual ones on the same simulated nights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from gpuscale.compare import compare
from gpuscale.records import EntryKey, Results, Verdict
from gpuscale.records.simulation import (
    BaselineNights,
    Loss,
    LossKind,
    RuleOutcome,
    Scenario,
    Validation,
    World,
)
from gpuscale.selftest.parallel import in_parallel
from gpuscale.selftest.rates import rate_of
from gpuscale.selftest.rules import Runs, usual_rules
from gpuscale.selftest.simulation import Chunk, chunks_of, random_streams
from gpuscale.selftest.worlds import STRUCK_CASE, recorded, simulated_nights, struck_gpus

OWN_RULE = "gpuscale"
CURRENT_RUNS = (2, 3, 5)
LOSSES = (0.02, 0.05, 0.10)
WORLDS = (
    World(
        run_deviation=0.0026,
        baseline=BaselineNights.ONE_NIGHT,
        allocation_deviation=0.01,
        peculiarity="Quiet GPU node",
    ),
    World(
        run_deviation=0.02,
        baseline=BaselineNights.ONE_NIGHT,
        allocation_deviation=0.01,
        peculiarity="Noisy GPU node",
    ),
    World(
        run_deviation=0.05,
        baseline=BaselineNights.ONE_NIGHT,
        allocation_deviation=0.01,
        peculiarity="Shared CPU machine",
    ),
)
_STREAM = 1_000_000
"""Keeps these random streams apart from those of the simulation with the same seed."""

Counts = Mapping[str, tuple[int, int, int, int]]
"""By rule, of one comparison: rows without a loss, alarms in them, rows with one, those found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """The windows of one row on both sides, and whether it was struck."""

    key: EntryKey
    is_struck: bool
    before: Runs
    now: Runs


def validation_scenarios() -> tuple[Scenario, ...]:
    """Every world and number of runs, without and with each loss."""
    losses = [None, *(Loss(kind=kind, size=size) for kind, size in product(LossKind, LOSSES))]
    return tuple(
        Scenario(world=world, current_runs=runs, loss=loss)
        for world, runs, loss in product(WORLDS, CURRENT_RUNS, losses)
    )


def validate(
    *,
    comparisons: int,
    seed: int,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Judge the same random nights by every rule.

    Args:
        comparisons: in all, dealt out evenly, at least one for each scenario.
        seed: two validations of one seed and size give the same.
        processes: 1 is this one alone.
        progress: is told how many comparisons of how many are done.
    """
    scenarios = validation_scenarios()
    each = max(1, comparisons // len(scenarios))
    chunks = chunks_of(dict.fromkeys(scenarios, each), seed + _STREAM)
    judged: dict[Scenario, list[Counts]] = {scenario: [] for scenario in scenarios}
    done, total = 0, len(scenarios) * each
    for chunk, counts in in_parallel(judge_by_every_rule, chunks, processes):
        judged[chunk.scenario].extend(counts)
        done += chunk.count
        progress(done, total)
    return Validation(
        seed=seed,
        comparisons=each,
        outcomes=tuple(
            _outcome(rule, scenario, judged[scenario])
            for scenario in scenarios
            for rule in (OWN_RULE, *(rule.name for rule in usual_rules()))
        ),
    )


def judge_by_every_rule(chunk: Chunk) -> list[Counts]:
    """What every rule says of the comparisons of a chunk."""
    found: list[Counts] = []
    for rng in random_streams(chunk):
        nights, tonight = simulated_nights(rng, chunk.scenario)
        rows = _rows(nights, tonight, chunk.scenario.loss)
        comparison = compare(recorded(chunk.scenario.world, nights), [tonight])
        verdicts = {entry.key: entry.verdict for entry in comparison.entries}
        alarms = {OWN_RULE: [verdicts[row.key] is Verdict.REGRESSED for row in rows]}
        for rule in usual_rules():
            alarms[rule.name] = [rule.alarms(row.before, row.now) for row in rows]
        found.append({name: _counts(rows, raised) for name, raised in alarms.items()})
    return found


def _rows(nights: Sequence[Results], tonight: Results, loss: Loss | None) -> list[_Row]:
    before, now = _windows(nights), _windows([tonight])
    struck = () if loss is None else struck_gpus(loss)
    return [
        _Row(
            key=key,
            is_struck=key.case == STRUCK_CASE and key.gpus in struck,
            before=before[key],
            now=now[key],
        )
        for key in before
    ]


def _windows(results: Sequence[Results]) -> dict[EntryKey, list[list[float]]]:
    """Window times by row; steps per window are the same everywhere, so they stay in."""
    found: dict[EntryKey, list[list[float]]] = {}
    for result in results:
        for run in result.runs:
            found.setdefault(run.key, []).append([window.time_s for window in run.windows])
    return found


def _counts(rows: Sequence[_Row], raised: Sequence[bool]) -> tuple[int, int, int, int]:
    quiet = [alarm for row, alarm in zip(rows, raised, strict=True) if not row.is_struck]
    struck = [alarm for row, alarm in zip(rows, raised, strict=True) if row.is_struck]
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
