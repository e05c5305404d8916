"""Compare results with a baseline: match rows, judge those that can be judged, and add notes.

A nightly run is also judged by the history of earlier nights, which shows lasting slowdowns that a
comparison of only two sides misses.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from gpuscale.analysis.estimates import exponential, grouped_log_sample, log_sample
from gpuscale.analysis.history import History
from gpuscale.analysis.nights import changes_on_night
from gpuscale.judge.compare.earlier import EarlierNights
from gpuscale.judge.compare.matching import machine_mismatch, match
from gpuscale.judge.compare.measured import judge_measured
from gpuscale.judge.compare.notes import notes_of
from gpuscale.judge.compare.published import judge_published
from gpuscale.judge.compare.verdict import ErrorRates, Judgement, too_few_valid_runs
from gpuscale.judge.sides import Sides, machine_label, sides_of, usual_means
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryVerdict,
    Facts,
    Finding,
    QuantityName,
    Results,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.records.baseline import THROUGHPUT
from gpuscale.records.configuration import ALL_ROWS, Choice

_FAR = 3.0
"""Deviations from the baseline beyond which one of several sessions is slow, and not by chance."""


def compare(
    baseline: Baseline, results: Sequence[Results], choice: Choice = ALL_ROWS
) -> Comparison:
    """Judge the chosen rows of results against a baseline."""
    return compare_sides(sides_of(baseline, results), choice)


def compare_sides(sides: Sides, choice: Choice) -> Comparison:
    """Judge the chosen rows; raise UsageError if a chosen case or GPU count is on neither side.

    Runs on 1 GPU serve as the reference for speedups even if their row is not chosen.
    """
    rates = ErrorRates(significance=sides.baseline.tolerances.significance)
    judgements = assess(sides, choice, rates)
    choice.validate(sides.keys)
    comparison = comparison_of(sides, judgements)
    if choice == ALL_ROWS or not judgements:
        return comparison
    return replace(comparison, notes=(*comparison.notes, Statement.of("rows_selected")))


def comparison_of(sides: Sides, judgements: Sequence[Judgement]) -> Comparison:
    """Build a `Comparison` from the judgements on its rows, with machine names and notes."""
    baseline, after = sides.baseline, sides.after
    rows = [judgement.row for judgement in judgements]
    machines = dict.fromkeys(where.hardware_label for where in after.environments)
    return Comparison(
        cluster=baseline.cluster,
        baseline_name=baseline.name,
        baseline_machine=machine_label(baseline),
        current_machine="; ".join(machines) if machines else "no results",
        entries=tuple(judgement.entry for judgement in judgements),
        notes=notes_of(sides, judgements),
        before=sides.before.origin_of([row.before for row in rows if row.before]),
        after=after.origin_of([row.after for row in rows if row.after]),
    )


def assess(sides: Sides, choice: Choice, rates: ErrorRates) -> list[Judgement]:
    """Judge every chosen row at these error rates."""
    rows = match(sides, choice.rows_of(sides.keys))
    if mismatch := machine_mismatch(sides.baseline.hardware, sides.after.environments):
        rows = [replace(row, obstacle=(Verdict.INCOMPARABLE, mismatch)) for row in rows]
    measured = [row for row in rows if row.obstacle is None and row.before is not None]
    by_measurement = iter(judge_measured(measured, sides, rates))
    judgements = []
    for row in rows:
        if row.obstacle is not None:
            judgements.append(Judgement(row=row, entry=row.verdict_of(*row.obstacle)))
        elif row.before is not None:
            judgements.append(next(by_measurement))
        else:
            judgements.append(judge_published(row, sides, rates))
    judged = [judgement.entry for judgement in judgements if judgement.entry.verdict.is_judged]
    # Published rows on 1 GPU pass by definition, so without other rows nothing was judged.
    if all(entry.reason.code == "speedup_reference" for entry in judged):
        reason = Statement.of("only_speedup_reference")
        judgements = [
            Judgement(row=row, entry=row.verdict_of(Verdict.INCONCLUSIVE, reason))
            if judgement.entry.verdict.is_judged
            else judgement
            for row, judgement in zip(rows, judgements, strict=True)
        ]
    return [_no_doubtful_pass(each, sides.baseline.tolerances) for each in judgements]


def _no_doubtful_pass(judgement: Judgement, tolerances: Tolerances) -> Judgement:
    """Make a pass inconclusive if many runs failed or one of several allocations is far slower."""
    row, entry = judgement.row, judgement.entry
    if row.after is None or not entry.verdict.is_pass:
        return judgement
    if few := too_few_valid_runs(row.after):
        reason = Statement.of("too_few_of_all_runs", **few | {"otherwise": entry.reason})
        entry = replace(entry, verdict=Verdict.INCONCLUSIVE, reason=reason, finding=None)
        return Judgement(row=row, entry=replace(entry, minimum_detectable_loss=None))
    means = {night: statistics.fmean(logs) for night, logs in row.after.logs.items()}
    if row.before is None or len(means) == 1:
        return judgement
    name = max(means, key=means.__getitem__)
    usual = log_sample([*usual_means(row.before, row.after).values()])
    loss = 1 - exponential(usual.mean - means[name])
    between = usual.variance or (judgement.assumed_deviation or 0.0) ** 2
    of_runs = grouped_log_sample(row.after.logs.values()).variance or 0.0
    chance = _FAR * math.sqrt(between + of_runs / len(row.after.logs[name]))
    if loss <= max(chance, tolerances.limits(row.key, THROUGHPUT).ok_bound):
        return judgement
    reason = Statement.of("slow_allocation", name=name, loss=loss, otherwise=entry.reason)
    return replace(judgement, entry=replace(entry, verdict=Verdict.INCONCLUSIVE, reason=reason))


def with_levels(comparison: Comparison, earlier: EarlierNights) -> Comparison:
    """Mark rows with a recent lasting slowdown as `regressed`, and add notes on the history.

    A plain comparison with earlier nights misses a slowdown that these nights already show.
    """
    history = earlier.history
    rows = {(row.point.configuration, row.point.gpus): row for row in history.rows}
    names = history.names

    def judged(entry: EntryVerdict) -> EntryVerdict:
        row = None
        if entry.configuration is not None and entry.verdict.is_judged:
            row = rows.get((entry.configuration, entry.key.gpus))
        if row is None or (lost := row.recent_loss) is None:
            return entry
        onset = names[lost.onset]
        # A drift has no first night.
        since = None if lost.kind == "drift" else onset
        if entry.verdict.is_loss:
            # If the nights compared with share the level, this loss is tonight's.
            compared = earlier.compared.get(row.point, ())
            is_it = lost.is_new or all(night < lost.onset for night in compared)
            return replace(entry, since=since) if is_it else entry
        facts: Facts = {"loss": -lost.throughput.value, "since": onset}
        if since is not None:
            facts["changed"] = changes_on_night(history.nights, lost.onset)
        reason = Statement.of("drifted" if since is None else "level_lost", **facts)
        on_1 = entry.key.gpus == 1
        return replace(
            entry,
            verdict=Verdict.REGRESSED,
            finding=Finding.SLOWER_TRAINING,
            reason=reason,
            baseline=lost.before,
            since=since,
            further_runs=None,
            change=lost.throughput,
            changed_quantity=QuantityName.THROUGHPUT_ON_1 if on_1 else QuantityName.THROUGHPUT,
        )

    pairs = zip(history.nights, names, strict=True)
    folders = {night.allocation: night.folder or name for night, name in pairs}
    entries = tuple(map(judged, comparison.entries))
    may_be_lost = any(each.verdict.weight < 2 and each.since is None for each in entries)
    notes = [_by_folder(note, folders) for note in comparison.notes]
    notes += _notes_on_nights(history, may_be_lost=may_be_lost)
    return replace(comparison, entries=entries, notes=tuple(notes))


def _notes_on_nights(history: History, *, may_be_lost: bool) -> Iterator[Statement]:
    """Yield notes on slow nodes, omitted nights and, if rows may be slower, environment changes."""
    names, tonight = history.names, len(history.names) - 1
    for effect in history.nodes:
        if tonight in effect.slow and effect.speed:
            loss = -effect.speed.value
            yield Statement.of("slow_node", name=effect.node, loss=loss, since=names[tonight])
    if history.left_out:
        yield Statement.of("nights_left_out", nights=history.left_out)
    if may_be_lost:
        night, changes = history.recent_change
        # What changed tonight is a change from the baseline, which has a note of its own.
        if night < tonight:
            yield Statement.of("recently_changed", changes=changes, since=names[night])


def _by_folder(note: Statement, folders: Mapping[str, str]) -> Statement:
    """In a note on outlying nights, replace allocation names by folder names, which users know."""
    if note.code != "outlying_allocations":
        return note
    names = tuple(folders.get(name, name) for name in note.facts["names"])
    return Statement(note.code, {**note.facts, "names": names})
