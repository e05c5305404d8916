"""Judging while measuring: what is settled, what needs more runs, what is confirmed.

The rule looks after each run from the fewest to the most. Because it looks several times, each
look is held to a stricter level (`pocock.nominal_error`), so that the whole session errs as
rarely as one comparison does. And what looks regressed is only called so once runs that were
made afterwards show the loss too.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from gpuscale.compare.comparison import comparison_of, entries_of
from gpuscale.compare.error_rates import ErrorRates
from gpuscale.compare.judgement import Judgement, too_few_valid_runs
from gpuscale.compare.looks import Looks
from gpuscale.compare.matching import Row
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    ReasonCode,
    Results,
    Statement,
    Verdict,
)
from gpuscale.statistics.estimates import CONFIDENCE, SIGNIFICANCE
from gpuscale.statistics.sequential import nominal_error


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """How many runs of each item a session makes: `--runs 3:8`."""

    fewest_runs: int
    most_runs: int

    @property
    def rates(self) -> ErrorRates:
        """What each look may err.

        A loss needs a confirming run, so it can first be called after `fewest_runs + 1`.
        """
        if self.fewest_runs == self.most_runs:
            return ErrorRates()
        return ErrorRates(
            significance=nominal_error(SIGNIFICANCE, self.fewest_runs + 1, self.most_runs),
            confidence=1 - nominal_error(1 - CONFIDENCE, self.fewest_runs, self.most_runs),
        )


class Progress(StrEnum):
    """Where one row stands in a session."""

    NEEDS_RUNS = "needs runs"
    SETTLED = "settled"
    """Passed, or cannot be judged however many runs there are."""
    CONFIRMED = "confirmed"
    """Regressed, and runs made after it was first suspected say so too."""
    UNDECIDED = "undecided"
    """All runs are made and tell neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryProgress:
    """One row: its verdict so far, and whether it is the last word."""

    entry: EntryVerdict
    """Never `regressed` or `inconsistent` unless `progress` is `CONFIRMED`."""
    progress: Progress
    looked_after: int | None = None
    """Runs at the look that `entry` comes from; None before the first."""
    suspected_after: int | None = None
    """Runs at the look at which it first looked worse than its margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a session knows after the runs so far."""

    entries: tuple[EntryProgress, ...]
    comparison: Comparison
    """Of the rows as `entries` has them; its exit code is the session's."""
    needs_runs: frozenset[EntryKey]
    """The rows to run again, and those on 1 GPU that their speedups are taken over."""


def next_step(
    baseline: Baseline,
    results: Sequence[Results],
    plan: SequentialPlan,
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
    configurations: Collection[Configuration] | None = None,
) -> Step:
    """What the runs so far say of each row, looking after each run as the plan allows.

    Pure and without memory: the looks of the past are made again from the order of the runs
    in the results, so a resumed session goes on where it was. Look k has the first k runs of
    each item that gave a number, and what failed before them. A row that is settled or confirmed
    stays so, unless most of its later runs fail.

    Args:
        baseline: as for `compare`.
        results: everything that the session has, the runs in the order in which they ended.
        plan: how many runs there may be.
        cases: as for `compare`.
        gpus: as for `compare`: the numbers of GPUs that the session measures.
        configurations: those that the session measures. Of a row that the baseline has in one of
            them, its entries in others are left out; None leaves out none.
    """
    baseline = _as_measured(baseline, configurations)
    looks = Looks.of(
        baseline,
        results,
        most_runs=plan.most_runs,
        rates=plan.rates,
        cases=cases,
        gpus=gpus,
    )
    session = _Session(looks=looks, plan=plan)
    everything = looks.assess(0, math.inf)
    states = [_State() for _ in everything.rows]
    for look in range(plan.fewest_runs, plan.most_runs + 1):
        if any(looks.has_reached(row, look) for row in everything.rows):
            states = session.after_look(states, look)
    entries = entries_of(everything, baseline)
    progress = tuple(
        _reported(state, entry, row)
        for state, entry, row in zip(states, entries, everything.rows, strict=True)
    )
    return Step(
        entries=progress,
        comparison=comparison_of(everything, baseline, results, [each.entry for each in progress]),
        needs_runs=_needed(progress),
    )


def _as_measured(baseline: Baseline, configurations: Collection[Configuration] | None) -> Baseline:
    if configurations is None:
        return baseline
    met = {run.key for run in baseline.runs if run.configuration in configurations}
    return msgspec.structs.replace(
        baseline,
        runs=tuple(
            run
            for run in baseline.runs
            if run.key not in met or run.configuration in configurations
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the looks so far left of one row."""

    entry: EntryVerdict | None = None
    progress: Progress = Progress.NEEDS_RUNS
    looked_after: int | None = None
    suspected_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """The looks of a session, and what each changes."""

    looks: Looks
    plan: SequentialPlan

    def after_look(self, states: Sequence[_State], look: int) -> list[_State]:
        """The states of all rows after one more look at those that are open."""
        now = self.looks.assess(0, look)
        entries = entries_of(now, self.looks.baseline)
        return [
            self._after_look(state, row, judgement, entry, look)
            if state.progress is Progress.NEEDS_RUNS and self.looks.has_reached(row, look)
            else state
            for state, row, judgement, entry in zip(
                states, now.rows, now.judgements, entries, strict=True
            )
        ]

    def _after_look(
        self, state: _State, row: Row, judgement: Judgement, entry: EntryVerdict, look: int
    ) -> _State:
        last = look == self.plan.most_runs
        suspected = state.suspected_after
        looked = replace(state, entry=entry, looked_after=look)
        if judgement.verdict.is_pass or _cannot_be_judged(row):
            return replace(looked, progress=Progress.SETTLED)
        if judgement.verdict.is_loss and self._is_confirmed(row, judgement, suspected, look):
            return replace(looked, progress=Progress.CONFIRMED)
        if suspected is None and (judgement.is_suspect or judgement.verdict.is_loss):
            looked = replace(looked, suspected_after=look)
        return replace(looked, progress=Progress.UNDECIDED if last else Progress.NEEDS_RUNS)

    def _is_confirmed(
        self, row: Row, judgement: Judgement, suspected: int | None, look: int
    ) -> bool:
        """Whether the runs since the suspicion, by themselves, lie beyond the margin too."""
        if self.plan.fewest_runs == self.plan.most_runs:
            return True
        if suspected is None or judgement.decided_by is None:
            return False
        fresh = self.looks.assess(suspected, look)
        return any(
            again.excess_losses.get(judgement.decided_by, 0.0) > 0
            for other, again in zip(fresh.rows, fresh.judgements, strict=True)
            if _identity(other) == _identity(row)
        )


def _identity(row: Row) -> tuple[EntryKey, Configuration | None]:
    return row.key, None if row.before is None else row.before.point.configuration


def _cannot_be_judged(row: Row) -> bool:
    """Whether more runs would not help: another machine or measurement, or no baseline."""
    without_baseline = row.before is None and row.figure is None
    return row.obstacle is Verdict.INCOMPARABLE or without_baseline


def _reported(state: _State, latest: EntryVerdict, row: Row) -> EntryProgress:
    progress = Progress.SETTLED if _cannot_be_judged(row) else state.progress
    entry = state.entry or latest
    few = too_few_valid_runs(row.after)
    if state.entry is None and latest.verdict.is_judged:
        made = 0 if row.after is None else row.after.point.valid_runs
        entry = replace(
            latest,
            verdict=Verdict.INCONCLUSIVE,
            finding=None,
            further_runs=None,
            reason=Statement.of(ReasonCode.TOO_FEW_TO_LOOK, made=made)
            if few is None
            else Statement.of(ReasonCode.TOO_FEW_VALID_RUNS, **few),
        )
    elif few is not None and entry.verdict.is_pass:
        entry = replace(
            entry,
            verdict=Verdict.INCONCLUSIVE,
            finding=None,
            reason=Statement.of(ReasonCode.TOO_FEW_SINCE_LOOK, **few, otherwise=entry.reason),
        )
        progress = Progress.NEEDS_RUNS
    elif entry.verdict.is_loss and progress is not Progress.CONFIRMED:
        entry = replace(
            entry,
            verdict=Verdict.INCONCLUSIVE,
            finding=None,
            reason=Statement.of(ReasonCode.NOT_YET_CONFIRMED, otherwise=entry.reason),
        )
    return EntryProgress(
        entry=entry,
        progress=progress,
        looked_after=state.looked_after,
        suspected_after=state.suspected_after,
    )


def _needed(entries: Sequence[EntryProgress]) -> frozenset[EntryKey]:
    open_rows = [each.entry.key for each in entries if each.progress is Progress.NEEDS_RUNS]
    references = [EntryKey(key.case, key.strategy, 1) for key in open_rows]
    return frozenset([*open_rows, *references])
