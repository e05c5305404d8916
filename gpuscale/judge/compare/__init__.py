"""Compare results with a baseline: match rows, judge those that can be judged, and add notes."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.analysis.estimates import exponential
from gpuscale.analysis.scaling import Entry
from gpuscale.base.errors import UsageError
from gpuscale.judge.compare.matching import MatchedRow, match, too_few_valid_runs
from gpuscale.judge.compare.measured import judge_measured
from gpuscale.judge.compare.notes import notes_of
from gpuscale.judge.compare.published import judge_published
from gpuscale.judge.compare.verdict import ErrorRates, Judgement
from gpuscale.judge.hardware import hardware_label, machine_mismatch
from gpuscale.judge.sides import Sides, sides_of
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryKey,
    EntryVerdict,
    Results,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.records.baseline import THROUGHPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selection of the rows to judge; None selects all."""

    cases: Collection[str] | None = None
    """Case names, such as `mnist_cnn` or `mnist_cnn/ddp`."""
    gpus: Collection[int] | None = None

    def rows_of(self, keys: Sequence[EntryKey]) -> list[EntryKey]:
        """Return the chosen keys, grouped by case and sorted by number of GPUs.

        If neither side has a chosen case on any chosen number of GPUs, keys for these numbers are
        added, so that their rows are reported as missing.
        """
        cases = {case: i for i, case in enumerate(dict.fromkeys(key[:2] for key in keys))}
        chosen = [
            key
            for key in keys
            if key.is_of(self.cases) and (self.gpus is None or key.gpus in self.gpus)
        ]
        left = [name for name in self.cases or () if not any(key.is_of((name,)) for key in chosen)]
        absent = (
            key._replace(gpus=count) for key in keys if key.is_of(left) for count in self.gpus or ()
        )
        return sorted({*chosen, *absent}, key=lambda key: (cases[key[:2]], key.gpus))

    def validate(self, keys: Collection[EntryKey]) -> None:
        """Raise UsageError for a case or number of GPUs that neither side has.

        Without this check, a comparison of the remaining rows could pass.
        """
        for name in self.cases or ():
            if not any(key.is_of((name,)) for key in keys):
                known = ", ".join(dict.fromkeys(key.name for key in keys))
                problem = f"the case '{name}' is neither in the baseline nor in the results"
                raise UsageError(f"{problem}; there are {known}")
        counts = {key.gpus for key in keys if key.is_of(self.cases)}
        for count in sorted(set(self.gpus or ()) - counts):
            known = ", ".join(map(str, sorted(counts)))
            problem = "neither the baseline nor the results have such a row"
            raise UsageError(f"--gpus {count}: {problem}; there are {known}")


def compare(
    baseline: Baseline,
    results: Sequence[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
) -> Comparison:
    """Judge results against a baseline; `cases` and `gpus` select rows, and None selects all."""
    return compare_sides(sides_of(baseline, results), Choice(cases=cases, gpus=gpus))


def compare_sides(sides: Sides, choice: Choice) -> Comparison:
    """Judge every chosen row of either side.

    Runs on 1 GPU serve as the reference for speedups even if their row is not chosen. Raises
    UsageError for a chosen case or number of GPUs that neither side has.
    """
    rates = ErrorRates(significance=sides.baseline.tolerances.significance)
    judgements = assess(sides, choice, rates)
    if sides.keys:
        choice.validate(sides.keys)
    rows = [judgement.row for judgement in judgements]
    return comparison_of(sides, rows, [judgement.entry for judgement in judgements])


def comparison_of(
    sides: Sides, rows: Sequence[MatchedRow], entries: Sequence[EntryVerdict]
) -> Comparison:
    """Build the record of a comparison from the rows' verdicts, adding machines and notes."""
    baseline, after = sides.baseline, sides.after
    machines = dict.fromkeys(where.hardware_label for where in after.environments)
    return Comparison(
        cluster=baseline.cluster,
        baseline_name=baseline.name,
        baseline_machine=hardware_label(baseline.cluster, baseline.hardware),
        current_machine="; ".join(machines) if machines else "no results",
        entries=tuple(entries),
        notes=notes_of(sides, rows, entries),
        before=sides.before.origin_of([row.before for row in rows if row.before]),
        after=after.origin_of([row.after for row in rows if row.after]),
    )


def assess(sides: Sides, choice: Choice, rates: ErrorRates) -> list[Judgement]:
    """Judge every chosen row at these error rates."""
    rows = match(sides, choice.rows_of(sides.keys))
    mismatch = machine_mismatch(sides.baseline.hardware, sides.after.environments)
    if mismatch:
        rows = [replace(row, obstacle=Verdict.INCOMPARABLE, reason=mismatch) for row in rows]
    measured = [row for row in rows if row.obstacle is None and row.before is not None]
    by_measurement = iter(judge_measured(measured, sides, rates))
    judgements = []
    for row in rows:
        if row.obstacle is not None and row.reason is not None:
            judgements.append(Judgement(row=row, entry=row.verdict_of(row.obstacle, row.reason)))
        elif row.before is not None:
            judgements.append(next(by_measurement))
        else:
            judgements.append(judge_published(row, sides, rates))
    if _is_reference_alone(judgements):
        reason = Statement.of("only_speedup_reference")
        judgements = [
            Judgement(row=row, entry=row.verdict_of(Verdict.INCONCLUSIVE, reason))
            if judgement.entry.verdict.is_judged
            else judgement
            for row, judgement in zip(rows, judgements, strict=True)
        ]
    return [_no_doubtful_pass(judged, sides.baseline.tolerances) for judged in judgements]


def _is_reference_alone(judgements: Sequence[Judgement]) -> bool:
    """True if no row was judged except published rows on 1 GPU, which pass by definition."""
    judged = [judgement.entry for judgement in judgements if judgement.entry.verdict.is_judged]
    return all(entry.reason.code == "speedup_reference" for entry in judged)


def _no_doubtful_pass(judgement: Judgement, tolerances: Tolerances) -> Judgement:
    """Make a pass inconclusive if too few runs are valid or one allocation lags the others."""
    row, entry = judgement.row, judgement.entry
    if row.after is None or not entry.verdict.is_pass:
        return judgement
    if few := too_few_valid_runs(row.after):
        reason = Statement.of("too_few_of_all_runs", **few | {"otherwise": entry.reason})
        entry = replace(entry, verdict=Verdict.INCONCLUSIVE, reason=reason, finding=None)
        return Judgement(row=row, entry=replace(entry, minimum_detectable_loss=None))
    nights = _deviations_from_others(row.after).items()
    name, apart = max(nights, key=lambda night: night[1], default=("", 0.0))
    loss = 1 - exponential(-apart)
    if loss <= tolerances.limits(row.key, THROUGHPUT).ok_bound:
        return judgement
    reason = Statement.of("slow_allocation", name=name, loss=loss, otherwise=entry.reason)
    return replace(judgement, entry=replace(entry, verdict=Verdict.INCONCLUSIVE, reason=reason))


def _deviations_from_others(current: Entry) -> Mapping[str, float]:
    """Return each allocation's mean log step time minus the mean of the other allocations."""
    means = {night: statistics.fmean(logs) for night, logs in current.logs.items()}
    if len(means) == 1:
        return {}
    total = math.fsum(means.values())
    return {night: mean - (total - mean) / (len(means) - 1) for night, mean in means.items()}
