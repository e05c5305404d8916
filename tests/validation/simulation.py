"""Judge random nights whose truth is known, and count errors."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing.connection import wait

import numpy as np

from gpuscale.judge.compare import compare
from gpuscale.records import Comparison, EntryKey, Finding, Results, Verdict
from validation.rates import Rate, rate_of
from validation.scenarios import Promise, lossy_scenarios, promises, quiet_scenarios, shares
from validation.simulated_machine import LossKind, Scenario, recorded, simulated_nights

OWN_RULE = "gpuscale"
CHUNK = 20
"""Number of comparisons in a chunk, which takes about 0.1 s."""
_QUIET_WEIGHT, _LOSSY_WEIGHT = 4, 10
"""Factors by which promised scenarios get more comparisons."""
_FINDINGS = {
    LossKind.EVERY_N: Finding.SINGLE_GPU_SLOWDOWN,
    LossKind.LARGEST_N: Finding.SCALING_LOSS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The verdicts of one comparison, counted by row; a row is one (case, gpus)."""

    quiet_rows: int
    alarms: int
    """Number of regressed rows without a loss."""
    struck_rows: int
    found: int
    """Number of regressed rows with a loss."""
    passed: int = 0
    """Rows without a loss that were ok or improved."""
    named: int = 0
    """Number of regressed rows with a loss and the right finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A share of one scenario's comparisons; each comparison has its own random stream."""

    scenario: Scenario
    seed: tuple[int, int]
    """Seed of the simulation, and number of the scenario."""
    first: int
    count: int


Judge = Callable[[Chunk], list[Mapping[str, Tally]]]
"""Function that judges the comparisons of a chunk, each by several rules with these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The rates of what a rule's tallies count."""

    rule: str
    scenario: Scenario
    comparisons: int
    false_alarms: Rate
    false_alarm_comparisons: Rate
    """Comparisons with at least one false alarm."""
    passed: Rate
    found: Rate | None = None
    """None if nothing was lost."""
    named: Rate | None = None


class Standing(StrEnum):
    """Whether a promised figure is met, and whether the simulation is large enough to be sure."""

    MET = "met"
    MET_UNSURE = "met, not surely"
    NOT_MET_UNSURE = "not met, not surely"
    NOT_MET = "not met"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A rate that was promised beforehand, and the rate that was found."""

    promise: Promise
    found: Rate

    @property
    def is_met(self) -> bool:
        value, limit = self.found.rate.value, self.promise.limit
        return value <= limit if self.promise.at_most else value >= limit

    @property
    def standing(self) -> Standing:
        """Whether the figure is met, and whether the interval of the rate makes this sure."""
        below = self.promise.at_most == self.is_met
        bound = self.found.rate.high if below else self.found.rate.low
        sure = bound is not None and (bound <= self.promise.limit) == below
        if self.is_met:
            return Standing.MET if sure else Standing.MET_UNSURE
        return Standing.NOT_MET if sure else Standing.NOT_MET_UNSURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All scenarios of one simulation, and the promised figures."""

    seed: int
    quiet: tuple[Outcome, ...]
    lossy: tuple[Outcome, ...]
    figures: tuple[Figure, ...]


def simulate(*, comparisons: int, seed: int) -> Simulation:
    """Judge `comparisons` nights without a loss and as many with one; check the promised figures.

    The result depends only on the number of comparisons and the seed.
    """
    promised = promises()
    alarms = [promise for promise in promised if promise.at_most]
    power = [promise for promise in promised if not promise.at_most]
    counts = {
        **shares(quiet_scenarios(), alarms, _QUIET_WEIGHT, comparisons),
        **shares(lossy_scenarios(), power, _LOSSY_WEIGHT, comparisons),
    }
    judged = judged_in_chunks(judge_by_gpuscale, counts, seed)
    outcomes = outcomes_of(judged)
    return Simulation(
        seed=seed,
        quiet=tuple(outcome for outcome in outcomes if outcome.scenario.loss is None),
        lossy=tuple(outcome for outcome in outcomes if outcome.scenario.loss is not None),
        figures=tuple(_figure(promise, judged) for promise in promised),
    )


def judged_in_chunks(
    judge: Judge, counts: Mapping[Scenario, int], seed: int
) -> dict[Scenario, list[Mapping[str, Tally]]]:
    """Judge the comparisons of each scenario in several processes, and show the progress."""
    judged: dict[Scenario, list[Mapping[str, Tally]]] = {scenario: [] for scenario in counts}
    done, total = 0, sum(counts.values())
    chunks, processes = chunks_of(counts, seed), len(os.sched_getaffinity(0))
    # Spawned, not forked: numpy's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_end_with_parent) as pool:
        mapped = map(judge, chunks) if processes == 1 else pool.map(judge, chunks)
        for chunk, answers in zip(chunks, mapped, strict=True):
            judged[chunk.scenario].extend(answers)
            done += chunk.count
            if sys.stderr.isatty():
                sys.stderr.write(f"\rcomparison {done}/{total}" + "\n" * (done == total))
    return judged


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


def chunks_of(counts: Mapping[Scenario, int], seed: int) -> list[Chunk]:
    return [
        Chunk(scenario=scenario, seed=(seed, number), first=first, count=min(CHUNK, count - first))
        for number, (scenario, count) in enumerate(counts.items())
        for first in range(0, count, CHUNK)
    ]


def nights_of(chunk: Chunk) -> Iterator[tuple[Sequence[Results], Results]]:
    """Yield both sides of each comparison, from a random stream of its own."""
    for index in range(chunk.first, chunk.first + chunk.count):
        yield simulated_nights(np.random.default_rng((*chunk.seed, index)), chunk.scenario)


def judge_by_gpuscale(chunk: Chunk) -> list[Mapping[str, Tally]]:
    machine = chunk.scenario.machine
    comparisons = (compare(recorded(machine, nights), [now]) for nights, now in nights_of(chunk))
    return [{OWN_RULE: tally_of(each, chunk.scenario)} for each in comparisons]


def outcomes_of(judged: Mapping[Scenario, Sequence[Mapping[str, Tally]]]) -> tuple[Outcome, ...]:
    return tuple(
        _outcome(rule, scenario, [tallies[rule] for tallies in comparisons])
        for scenario, comparisons in judged.items()
        for rule in comparisons[0]
    )


def _outcome(rule: str, scenario: Scenario, tallies: Sequence[Tally]) -> Outcome:
    return Outcome(
        rule=rule,
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


def alarms_of(alarms: Mapping[EntryKey, bool], scenario: Scenario) -> Tally:
    """Count the rows that a rule calls worse, separately for rows with and without the loss."""
    struck = [row for row in alarms if scenario.strikes(row.case, row.gpus)]
    found = sum(alarms[row] for row in struck)
    quiet, wrong = len(alarms) - len(struck), sum(alarms.values()) - found
    return Tally(quiet_rows=quiet, alarms=wrong, struck_rows=len(struck), found=found)


def tally_of(comparison: Comparison, scenario: Scenario) -> Tally:
    entries = comparison.entries
    alarms = {entry.key: entry.verdict is Verdict.REGRESSED for entry in entries}
    counted = alarms_of(alarms, scenario)
    struck = [each for each in entries if scenario.strikes(each.key.case, each.key.gpus)]
    return replace(
        counted,
        passed=sum(entry.verdict.is_pass for entry in entries if entry not in struck),
        named=sum(
            entry.verdict is Verdict.REGRESSED
            and scenario.loss is not None
            and entry.finding is _FINDINGS[scenario.loss.kind]
            for entry in struck
        ),
    )


def _figure(promise: Promise, judged: Mapping[Scenario, Sequence[Mapping[str, Tally]]]) -> Figure:
    tallies = [each[OWN_RULE] for scenario in promise.scenarios for each in judged[scenario]]
    found = rate_of(
        (tally.alarms, tally.quiet_rows) if promise.at_most else (tally.found, tally.struck_rows)
        for tally in tallies
    )
    return Figure(promise=promise, found=found)
