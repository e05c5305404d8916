"""The judgement tried on seeded random nights whose truth is known."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.compare import compare
from gpuscale.records import Comparison, EntryKey, Finding, Verdict
from gpuscale.records.simulation import Figure, Loss, LossKind, Outcome, Scenario, Simulation
from gpuscale.selftest.parallel import in_parallel
from gpuscale.selftest.rates import rate_of
from gpuscale.selftest.scenarios import (
    Promise,
    false_alarm_promises,
    lossy_scenarios,
    power_promises,
    quiet_scenarios,
    shares,
)
from gpuscale.selftest.worlds import STRUCK_CASE, recorded, simulated_nights, struck_gpus

CHUNK = 20
"""Comparisons that a process makes at a time; about 0.1 s."""
_QUIET_WEIGHT, _LOSSY_WEIGHT = 4, 10
"""How many times more comparisons a scenario gets where a figure was promised."""
_NAMES = {
    LossKind.EVERY_N: (Finding.SINGLE_GPU_SLOWDOWN,),
    LossKind.LARGEST_N: (Finding.SCALING_LOSS,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one comparison said, counted by row."""

    quiet_rows: int
    """Without a loss."""
    alarms: int
    """Of them regressed."""
    passed: int
    struck_rows: int = 0
    """With a loss."""
    found: int = 0
    """Of them regressed."""
    named: int = 0
    """Of those with the right finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some comparisons of one scenario; each has a random stream of its own."""

    scenario: Scenario
    seed: tuple[int, int]
    """The simulation's, and the scenario's number."""
    first: int
    count: int


def simulate(
    *,
    comparisons: int,
    seed: int,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Simulation:
    """Judge random nights in every scenario, and say whether the promised figures hold.

    Args:
        comparisons: nights without a loss; as many with one come on top.
        seed: two simulations of one seed and size give the same, on any number of processes.
        processes: 1 is this one alone.
        progress: is told how many comparisons of how many are done.
    """
    began = time.monotonic()
    false_alarms, power = false_alarm_promises(), power_promises()
    counts = {
        **shares(quiet_scenarios(), false_alarms, _QUIET_WEIGHT, comparisons),
        **shares(lossy_scenarios(), power, _LOSSY_WEIGHT, comparisons),
    }
    tallies = _tallies(counts, seed, processes, progress)
    outcomes = [outcome_of(scenario, tallies[scenario]) for scenario in counts]
    return Simulation(
        seed=seed,
        quiet=tuple(outcome for outcome in outcomes if outcome.scenario.loss is None),
        lossy=tuple(outcome for outcome in outcomes if outcome.scenario.loss is not None),
        figures=(
            *(_figure(promise, tallies, at_most=True) for promise in false_alarms),
            *(_figure(promise, tallies, at_most=False) for promise in power),
        ),
        wall_s=time.monotonic() - began,
    )


def chunks_of(counts: Mapping[Scenario, int], seed: int) -> list[Chunk]:
    """The work of a simulation in portions."""
    return [
        Chunk(
            scenario=scenario,
            seed=(seed, number),
            first=first,
            count=min(CHUNK, count - first),
        )
        for number, (scenario, count) in enumerate(counts.items())
        for first in range(0, count, CHUNK)
    ]


def judge_chunk(chunk: Chunk) -> list[Tally]:
    """What the comparisons of a chunk said."""
    tallies = []
    for rng in random_streams(chunk):
        nights, tonight = simulated_nights(rng, chunk.scenario)
        comparison = compare(recorded(chunk.scenario.world, nights), [tonight])
        tallies.append(_tally(comparison, chunk.scenario.loss))
    return tallies


def random_streams(chunk: Chunk) -> Iterable[np.random.Generator]:
    """A random stream for each comparison, which no other comparison changes."""
    for index in range(chunk.first, chunk.first + chunk.count):
        yield np.random.default_rng((*chunk.seed, index))


def outcome_of(scenario: Scenario, tallies: Sequence[Tally]) -> Outcome:
    """The rates of one scenario."""
    return Outcome(
        scenario=scenario,
        comparisons=len(tallies),
        false_alarms=rate_of((tally.alarms, tally.quiet_rows) for tally in tallies),
        false_alarm_comparisons=rate_of((int(tally.alarms > 0), 1) for tally in tallies),
        passed=rate_of((tally.passed, tally.quiet_rows) for tally in tallies),
        found=None
        if scenario.loss is None
        else rate_of((tally.found, tally.struck_rows) for tally in tallies),
        named=rate_of((tally.named, tally.found) for tally in tallies)
        if any(tally.found for tally in tallies)
        else None,
    )


def _tallies(
    counts: Mapping[Scenario, int],
    seed: int,
    processes: int,
    progress: Callable[[int, int], None],
) -> Mapping[Scenario, list[Tally]]:
    chunks = chunks_of(counts, seed)
    tallies: dict[Scenario, list[Tally]] = {scenario: [] for scenario in counts}
    done, total = 0, sum(chunk.count for chunk in chunks)
    for chunk, judged in in_parallel(judge_chunk, chunks, processes):
        tallies[chunk.scenario].extend(judged)
        done += chunk.count
        progress(done, total)
    return tallies


def _tally(comparison: Comparison, loss: Loss | None) -> Tally:
    struck = () if loss is None else struck_gpus(loss)
    rows = {True: list[EntryKey](), False: list[EntryKey]()}
    alarms = {True: 0, False: 0}
    passed = named = 0
    for entry in comparison.entries:
        has_loss = entry.key.case == STRUCK_CASE and entry.key.gpus in struck
        rows[has_loss].append(entry.key)
        alarms[has_loss] += entry.verdict is Verdict.REGRESSED
        passed += not has_loss and entry.verdict.is_pass
        named += (
            has_loss
            and loss is not None
            and entry.verdict is Verdict.REGRESSED
            and entry.finding in _NAMES[loss.kind]
        )
    return Tally(
        quiet_rows=len(rows[False]),
        alarms=alarms[False],
        passed=passed,
        struck_rows=len(rows[True]),
        found=alarms[True],
        named=named,
    )


def _figure(promise: Promise, tallies: Mapping[Scenario, list[Tally]], *, at_most: bool) -> Figure:
    judged = [tally for scenario in promise.scenarios for tally in tallies[scenario]]
    found = rate_of(
        (tally.alarms, tally.quiet_rows) if at_most else (tally.found, tally.struck_rows)
        for tally in judged
    )
    return Figure(statement=promise.statement, limit=promise.limit, at_most=at_most, found=found)
