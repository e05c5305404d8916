"""Judge a session while it measures: find rows that are settled, confirmed or need more runs.

The data are analysed after each number of runs from the minimum to the maximum. These interim
analyses use a stricter significance level (`significance.nominal_error`), so that a whole session
errs as rarely as one comparison. A loss is reported only once later runs show it too.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from gpuscale.analysis.scaling import References, point_keys
from gpuscale.analysis.statistics.estimates import CONFIDENCE, SIGNIFICANCE
from gpuscale.analysis.statistics.significance import nominal_error
from gpuscale.judge.compare.comparison import Assessment, Choice, assess
from gpuscale.judge.compare.decision import ErrorRates, Judgement
from gpuscale.judge.compare.matching import MatchedRow, too_few_valid_runs
from gpuscale.judge.sides import Sides, side_of_results, sides_of
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    PointKey,
    Results,
    Run,
    Statement,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """Minimum and maximum number of runs per row of a session, as in `--runs 3:8`."""

    fewest_runs: int
    most_runs: int

    def rates(self, significance: float = SIGNIFICANCE) -> ErrorRates:
        """Return the error rates of each analysis that give a whole session this significance.

        A loss needs a confirming run, so it is reported after `fewest_runs + 1` runs at the
        earliest.
        """
        if self.fewest_runs == self.most_runs:
            return ErrorRates(significance=significance)
        return ErrorRates(
            significance=nominal_error(significance, self.fewest_runs + 1, self.most_runs),
            confidence=1 - nominal_error(1 - CONFIDENCE, self.fewest_runs, self.most_runs),
        )


class RowStatus(StrEnum):
    """Decision whether a row needs more runs in a session, with the reason if it does not."""

    NEEDS_RUNS = "needs runs"
    SETTLED = "settled"
    """The row passed, or no number of runs would decide its verdict."""
    CONFIRMED = "confirmed"
    """The row regressed, and runs made after the first suspicion confirm it."""
    UNDECIDED = "undecided"
    """All planned runs were made, and the verdict is still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgress:
    """The verdict on a row so far, and its status."""

    entry: EntryVerdict
    """Verdict on the row; not `regressed` or `inconsistent` unless `status` is `CONFIRMED`."""
    status: RowStatus = RowStatus.NEEDS_RUNS
    analysed_after: int | None = None
    """Number of runs that the verdict in `entry` is based on; None before the first analysis."""
    suspected_after: int | None = None
    """Number of runs at the first analysis that suspected a loss; None if none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVerdict:
    """The verdict on a session after its runs so far."""

    entries: tuple[RowProgress, ...]
    comparison: Comparison
    """Comparison that contains the verdicts of `entries`; it determines the exit code."""
    sides: Sides
    needs_runs: frozenset[tuple[EntryKey, Configuration | None]]
    """Rows that need more runs, and the rows on 1 GPU that their speedups are relative to."""


def judge_session(
    baseline: Baseline,
    results: Sequence[Results],
    plan: SequentialPlan,
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
    configurations: Collection[Configuration] | None = None,
) -> SessionVerdict:
    """Judge each row by the runs so far, with the interim analyses that the plan provides for.

    No state is kept: past analyses are repeated from the order of the runs in the results, so a
    resumed session continues at the same point. Analysis k uses the first k valid runs of each row,
    and the failed runs before them. A row that is settled or confirmed stays so, unless most of its
    later runs fail.

    `results` contain all runs of the session, in the order in which they ended. `cases`, `gpus` and
    `configurations` are those that the session measures; None means all. If the baseline has a row
    in one of these configurations, that row's entries in other configurations are ignored.
    """
    if configurations is not None:
        met = {run.key for run in baseline.runs if run.configuration in configurations}
        runs = (r for r in baseline.runs if r.key not in met or r.configuration in configurations)
        baseline = msgspec.structs.replace(baseline, runs=tuple(runs))
    session = _Session(sides_of(baseline, results), results, plan, Choice(cases=cases, gpus=gpus))
    everything = session.assess(0, math.inf)
    judged = everything.judgements
    rows = [RowProgress(entry=judgement.entry) for judgement in judged]
    for count in range(plan.fewest_runs, plan.most_runs + 1):
        if any(session.has_reached(judgement.row, count) for judgement in judged):
            rows = session.analysed(rows, count)
    reported = tuple(_reported(row, now) for row, now in zip(rows, judged, strict=True))
    still_open = [row.entry for row in reported if row.status is RowStatus.NEEDS_RUNS]
    needed = [
        (key, entry.configuration)
        for entry in still_open
        for key in (entry.key, entry.key._replace(gpus=1))
    ]
    return SessionVerdict(
        entries=reported,
        sides=everything.sides,
        comparison=everything.comparison([row.entry for row in reported]),
        needs_runs=frozenset(needed),
    )


class _Session:
    """The runs of a session in the order in which they ended, and analyses of their subsets."""

    def __init__(
        self, sides: Sides, results: Sequence[Results], plan: SequentialPlan, choice: Choice
    ) -> None:
        self._sides, self._results = sides, results
        self._plan, self._choice = plan, choice
        self._valid: Counter[PointKey] = Counter()
        self._attempts: Counter[PointKey] = Counter()
        # The runs of each result, with the first analysis that includes them, counted from 1.
        self._placed: list[list[tuple[Run, int]]] = []
        for result in results:
            self._placed.append([])
            for key, run in zip(point_keys(result.runs), result.runs, strict=True):
                self._placed[-1].append((run, self._valid[key] + 1))
                self._attempts[key] += 1
                if run.is_valid:
                    self._valid[key] += 1
        self._references = References(self._valid)

    def assess(self, after: int, until: float) -> Assessment:
        """Judge the rows by the runs made after analysis `after` and up to analysis `until`.

        Runs on numbers of GPUs that the session does not measure are part of every analysis. If no
        run on 1 GPU was made after analysis `after`, the earlier ones still serve as the reference.
        """
        part = []
        for result, placed in zip(self._results, self._placed, strict=True):
            runs = tuple(
                run
                for run, position in placed
                if after < position <= until or self._serves_always(run, after)
            )
            part.append(msgspec.structs.replace(result, runs=runs))
        sides = replace(self._sides, after=side_of_results(part))
        rates = self._plan.rates(sides.baseline.tolerances.significance)
        return assess(sides, self._choice, rates)

    def _serves_always(self, run: Run, after: int) -> bool:
        is_used_up = run.gpus == 1 and self._valid[PointKey.of(run)] <= after
        return is_used_up or not self._measures(run.gpus)

    def _measures(self, gpus: int) -> bool:
        return self._choice.gpus is None or gpus in self._choice.gpus

    def has_reached(self, row: MatchedRow, runs: int) -> bool:
        """True if the row and its reference on 1 GPU have at least this many valid runs."""
        key = None if row.after is None else row.after.key
        if key is None or self._valid[key] < runs:
            return False
        reference = None if key.gpus == 1 else self._references.of(key)
        if reference is None or not self._measures(1) or self._valid[reference] >= runs:
            return True
        return self._attempts[reference] >= self._plan.most_runs

    def analysed(self, rows: Sequence[RowProgress], runs: int) -> list[RowProgress]:
        """Analyse the rows that still need runs once more, and return all rows."""
        return [
            self._analysed(replace(before, entry=now.entry, analysed_after=runs), now, runs)
            if before.status is RowStatus.NEEDS_RUNS and self.has_reached(now.row, runs)
            else before
            for before, now in zip(rows, self.assess(0, runs).judgements, strict=True)
        ]

    def _analysed(self, now: RowProgress, judgement: Judgement, runs: int) -> RowProgress:
        verdict, suspected = now.entry.verdict, now.suspected_after
        if verdict.is_pass or _cannot_be_judged(judgement.row):
            return replace(now, status=RowStatus.SETTLED)
        if verdict.is_loss and self._is_confirmed(judgement, suspected, runs):
            return replace(now, status=RowStatus.CONFIRMED)
        if suspected is None and (judgement.is_suspect or verdict.is_loss):
            now = replace(now, suspected_after=runs)
        return replace(now, status=RowStatus.UNDECIDED) if runs == self._plan.most_runs else now

    def _is_confirmed(self, judgement: Judgement, suspected: int | None, runs: int) -> bool:
        """True if the runs made since the suspicion show a loss beyond the margin on their own."""
        if self._plan.fewest_runs == self._plan.most_runs:
            return True
        if suspected is None or judgement.decided_by is None:
            return False
        return any(
            again.excess_losses.get(judgement.decided_by, 0.0) > 0
            for again in self.assess(suspected, runs).judgements
            if _identity(again.row) == _identity(judgement.row)
        )


def _identity(row: MatchedRow) -> tuple[EntryKey, Configuration | None]:
    return row.key, None if row.before is None else row.before.key.configuration


def _cannot_be_judged(row: MatchedRow) -> bool:
    """True if more runs cannot help: other machine or workload, or nothing to compare with."""
    without_baseline = row.before is None and row.published is None
    return row.obstacle is Verdict.INCOMPARABLE or without_baseline


def _reported(progress: RowProgress, of_all: Judgement) -> RowProgress:
    """Return the row as it may be reported: no unconfirmed loss, and no pass from too few runs.

    If all runs give the same verdict, the numbers are those of all runs, as in `gpuscale compare`.
    """
    row = of_all.row
    if of_all.entry.verdict is progress.entry.verdict:
        progress = replace(progress, entry=of_all.entry)
    status = RowStatus.SETTLED if _cannot_be_judged(row) else progress.status
    entry, few = progress.entry, too_few_valid_runs(row.after)
    if progress.analysed_after is None and entry.verdict.is_judged:
        entry = replace(entry, further_runs=None)
        if few is None:
            made = 0 if row.after is None else row.after.point.valid_runs
            reason = Statement.of("too_few_to_look", runs=made)
        else:
            reason = Statement.of("too_few_valid_runs", **few)
    elif few is not None and entry.verdict.is_pass:
        reason = Statement.of("too_few_since_look", **few | {"otherwise": entry.reason})
        status = RowStatus.NEEDS_RUNS
    elif entry.verdict.is_loss and status is not RowStatus.CONFIRMED:
        reason = Statement.of("not_yet_confirmed", otherwise=entry.reason)
    else:
        return replace(progress, status=status)
    entry = replace(entry, verdict=Verdict.INCONCLUSIVE, finding=None, reason=reason)
    return replace(progress, entry=entry, status=status)
