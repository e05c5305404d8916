"""Judge a session while it is running, so that rows with a settled verdict get no more runs.

The rows are analysed after each run, at a stricter significance level than in a comparison, so that
the whole session errs as rarely as one comparison. Later runs must confirm a suspected slowdown.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import CONFIDENCE, SIGNIFICANCE
from gpuscale.analysis.probabilities import nominal_error
from gpuscale.analysis.scaling import point_keys, references_of
from gpuscale.base.text import counted
from gpuscale.judge.compare import assess, comparison_of
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.verdict import ErrorRates, Judgement, too_few_valid_runs
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
    RunRequest,
    Statement,
    Verdict,
)
from gpuscale.records.configuration import Choice
from gpuscale.records.verdict import BaselineKind


class SequentialPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Minimum and maximum number of runs per row of a session, as in `--runs 3:8`."""

    fewest_runs: int
    most_runs: int

    def rates(self, significance: float = SIGNIFICANCE) -> ErrorRates:
        """Return the error rates of each analysis for this significance of the whole session.

        If several analyses are planned, the first one (after `fewest_runs` runs) reports no loss.
        """
        if self.fewest_runs == self.most_runs:
            return ErrorRates(significance=significance)
        return ErrorRates(
            significance=nominal_error(significance, self.fewest_runs + 1, self.most_runs),
            confidence=1 - nominal_error(1 - CONFIDENCE, self.fewest_runs, self.most_runs),
        )


class RowStatus(StrEnum):
    """Status of a row in a session: more runs are needed, or why no more are made."""

    NEEDS_RUNS = "needs runs"
    SETTLED = "settled"
    """The row passed, or no number of runs would decide its verdict."""
    CONFIRMED = "confirmed"
    """The row regressed, and runs executed after the first suspicion confirm the loss."""
    UNDECIDED = "undecided"
    """All planned runs were executed, and the verdict is still open."""


class RowProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A row's verdict so far, and whether the row needs more runs."""

    entry: EntryVerdict
    """Verdict on the row; not `regressed` or `inconsistent` unless `status` is `CONFIRMED`."""
    status: RowStatus = RowStatus.NEEDS_RUNS
    analysed_after: int | None = None
    """Number of runs that the verdict in `entry` is based on; None before the first analysis."""
    suspected_after: int | None = None
    """Number of runs at the first analysis that suspected a loss; None if no analysis has."""


class SessionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a session, based on its runs so far."""

    entries: tuple[RowProgress, ...]
    comparison: Comparison
    """Comparison that contains the verdicts of `entries`; it determines the exit code."""
    sides: Sides
    needs_runs: frozenset[tuple[EntryKey, Configuration | None]]
    """Rows that need more runs, and the rows on 1 GPU that their speedups are relative to."""


class DecidedVerdict(msgspec.Struct, kw_only=True):
    """Stopping rule that ends a session once its verdict against a baseline is decided.

    Every judgement repeats all analyses from the start. Analysis k uses the first k valid runs of
    each row and the failed runs before them. A settled or confirmed row stays so, unless it passed
    and most of its runs then fail. A row that passed may get more runs as the 1-GPU reference of
    other rows; its report then covers all its runs. `cases`, `gpus` and `configurations` limit what
    the session measures; None means all. If the baseline has runs of a row in one of these
    configurations, its runs of that row in other configurations are ignored.
    """

    baseline: Baseline
    plan: SequentialPlan
    gpus: Collection[int] | None = None
    baseline_kind: BaselineKind = "baseline"
    cases: Collection[str] | None = None
    configurations: Collection[Configuration] | None = None
    _judged: tuple[int, SessionVerdict] | None = None
    """Cache of the last judgement: the number of runs that were judged, and the verdict."""

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """Return the reason why a requested run is unnecessary; None if the run is needed."""
        if request.index <= self.plan.fewest_runs:
            return None
        verdict = self.verdict_after(results)
        wanted = (request.key, request.configuration)
        if wanted in verdict.needs_runs:
            return None
        for row in verdict.entries:
            if (row.entry.key, row.entry.configuration) == wanted:
                # A row on 1 GPU may have got more runs than were analysed, for speedups.
                valid = (run for run in results.runs if run.is_valid)
                made = sum((run.key, run.configuration) == wanted for run in valid)
                after = "" if row.analysed_after is None else f" after {counted(made, 'run')}"
                return f"{row.entry.verdict.value}{after}"
        return None

    def verdict_after(self, results: Results) -> SessionVerdict:
        """Return the verdict on all runs so far; `results` lists them in the order they ended."""
        # A judgement analyses all runs again, and is requested before each run.
        if self._judged is None or self._judged[0] != len(results.runs):
            self._judged = len(results.runs), self._judge(results)
        return self._judged[1]

    def _judge(self, results: Results) -> SessionVerdict:
        baseline = self.baseline
        if self.configurations is not None:
            wanted = self.configurations
            met = {run.key for run in baseline.runs if run.configuration in wanted}
            runs = (r for r in baseline.runs if r.key not in met or r.configuration in wanted)
            baseline = msgspec.structs.replace(baseline, runs=tuple(runs))
        sides = sides_of(baseline, [results])
        choice = Choice(cases=self.cases, gpus=self.gpus)
        session = _Session(sides, results, self.plan, choice)
        judged = session.assess(0, math.inf)
        rows = [RowProgress(entry=judgement.entry) for judgement in judged]
        for count in range(self.plan.fewest_runs, self.plan.most_runs + 1):
            if any(session.has_reached(judgement.row, count) for judgement in judged):
                rows = session.analysed(rows, count)
        at_end = judged
        pairs = zip(rows, judged, strict=True)
        if any(_has_moved(row.entry) or _has_more_runs(row, of_all) for row, of_all in pairs):
            rates = ErrorRates(significance=baseline.tolerances.significance)
            at_end = assess(sides, choice, rates)
        reported = tuple(map(_reported, rows, judged, at_end))
        still_open = [row.entry for row in reported if row.status is RowStatus.NEEDS_RUNS]
        final = [replace(j, entry=row.entry) for j, row in zip(judged, reported, strict=True)]
        return SessionVerdict(
            entries=reported,
            sides=sides,
            comparison=comparison_of(sides, final),
            needs_runs=frozenset(
                (key, entry.configuration)
                for entry in still_open
                for key in (entry.key, entry.key._replace(gpus=1))
            ),
        )


class _Session:
    """A session's runs, in the order in which they ended, and analyses of any part of them."""

    def __init__(
        self, sides: Sides, results: Results, plan: SequentialPlan, choice: Choice
    ) -> None:
        self._sides, self._results = sides, results
        self._plan, self._choice = plan, choice
        self._valid: Counter[PointKey] = Counter()
        self._attempts: Counter[PointKey] = Counter()
        # Each run, with its point and the number of the first analysis that includes it.
        self._placed: list[tuple[Run, PointKey, int]] = []
        for key, run in zip(point_keys(results.runs), results.runs, strict=True):
            self._placed.append((run, key, self._valid[key] + 1))
            self._attempts[key] += 1
            self._valid[key] += run.is_valid
        self._references = references_of(self._valid)

    def assess(self, after: int, until: float) -> list[Judgement]:
        """Judge each row by its valid runs `after` + 1 to `until` and the failed runs between them.

        Runs on numbers of GPUs that the session does not measure are always included. So are runs
        on 1 GPU (the reference for speedups) if there are at most `after` valid ones.
        """
        runs = tuple(
            run
            for run, key, position in self._placed
            if after < position <= until
            or not self._measures(run.gpus)
            or (run.gpus == 1 and self._valid[key] <= after)
        )
        part = msgspec.structs.replace(self._results, runs=runs)
        sides = replace(self._sides, after=side_of_results([part]))
        return assess(sides, self._choice, self._plan.rates(sides.baseline.tolerances.significance))

    def _measures(self, gpus: int) -> bool:
        return self._choice.gpus is None or gpus in self._choice.gpus

    def has_reached(self, row: MatchedRow, runs: int) -> bool:
        """True if the row and its 1-GPU reference have at least `runs` valid runs each.

        The reference may have fewer if it can get no more runs.
        """
        if row.after is None or self._valid[key := row.after.key] < runs:
            return False
        reference = None if key.gpus == 1 else self._references.get(key)
        if reference is None or not self._measures(1) or self._valid[reference] >= runs:
            return True
        return self._attempts[reference] >= self._plan.most_runs

    def analysed(self, rows: Sequence[RowProgress], runs: int) -> list[RowProgress]:
        """Analyse rows that need more runs and have at least `runs` valid ones; return all rows."""
        return [
            self._analysed(replace(before, entry=now.entry, analysed_after=runs), now, runs)
            if before.status is RowStatus.NEEDS_RUNS and self.has_reached(now.row, runs)
            else before
            for before, now in zip(rows, self.assess(0, runs), strict=True)
        ]

    def _analysed(self, now: RowProgress, judgement: Judgement, runs: int) -> RowProgress:
        verdict, suspected = now.entry.verdict, now.suspected_after
        if verdict.is_pass or _cannot_be_judged(judgement.row):
            return replace(now, status=RowStatus.SETTLED)
        if verdict.is_loss and self._is_confirmed(judgement, suspected, runs):
            return replace(now, status=RowStatus.CONFIRMED)
        if suspected is None and judgement.is_suspect:
            now = replace(now, suspected_after=runs)
        return replace(now, status=RowStatus.UNDECIDED) if runs == self._plan.most_runs else now

    def _is_confirmed(self, judgement: Judgement, suspected: int | None, runs: int) -> bool:
        """True if only one analysis is planned or runs `suspected` + 1 to `runs` confirm a loss."""
        if self._plan.fewest_runs == self._plan.most_runs:
            return True
        if suspected is None or judgement.decided_by is None:
            return False
        return any(
            again.excess_losses.get(judgement.decided_by, 0.0) > 0
            for again in self.assess(suspected, runs)
            if again.row.key == judgement.row.key and again.row.before is judgement.row.before
        )


def _cannot_be_judged(row: MatchedRow) -> bool:
    """True if more runs cannot help: machine or workload differs, or the baseline lacks the row."""
    return Verdict.INCOMPARABLE in (row.obstacle or ()) or not (row.before or row.published)


def _has_moved(entry: EntryVerdict) -> bool:
    return entry.verdict.is_loss or entry.verdict is Verdict.IMPROVED


def _has_more_runs(progress: RowProgress, of_all: Judgement) -> bool:
    """True if a row got more runs after it passed, because it is the 1-GPU reference of others."""
    made = 0 if of_all.row.after is None else of_all.row.after.point.valid_runs
    return progress.entry.verdict.is_pass and made > (progress.analysed_after or made)


def _reported(progress: RowProgress, of_all: Judgement, at_end: Judgement) -> RowProgress:
    """Return the row to report; a premature verdict or an unconfirmed loss becomes inconclusive.

    The numbers come from `of_all` (judged by all runs), but those of a loss or gain from `at_end`
    (judged by all runs without interim analyses) if its verdict is the same.
    """
    row = of_all.row
    if of_all.entry.verdict is progress.entry.verdict:
        progress = replace(progress, entry=of_all.entry)
    elif _has_more_runs(progress, of_all):
        entry = at_end.entry if at_end.entry.verdict.is_pass else of_all.entry
        progress = replace(progress, entry=entry)
    if at_end.entry.verdict is progress.entry.verdict and _has_moved(progress.entry):
        # Only the smallest loss depends on the error rates of an analysis.
        smallest = progress.entry.minimum_detectable_loss
        entry = replace(at_end.entry, minimum_detectable_loss=smallest)
        progress = replace(progress, entry=entry)
    status = RowStatus.SETTLED if _cannot_be_judged(row) else progress.status
    entry, few = progress.entry, too_few_valid_runs(row.after)
    if progress.analysed_after is None and entry.verdict.is_judged:
        entry = replace(entry, further_runs=None)
        if few is None:
            assert row.after is not None, "a row that is judged has runs"
            reason = Statement.of("too_few_to_look", runs=row.after.point.valid_runs)
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
