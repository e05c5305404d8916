"""Notes on a comparison, such as an uncertain baseline, omitted rows or implausible numbers."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date

from gpuscale.analysis.scaling import Entry, unchecked_training_note, unit_error_note
from gpuscale.analysis.statistics.estimates import exponential, grouped_log_sample
from gpuscale.analysis.statistics.levels import outlying_allocations
from gpuscale.judge.compare.hardware import foreign_note
from gpuscale.judge.compare.matching import (
    MatchedRow,
    first_failure,
    outlying_runs,
    point_differences,
    usual_logs,
)
from gpuscale.judge.compare.spread import MINIMUM_ALLOCATIONS
from gpuscale.judge.sides import Side, Sides
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryKey,
    EntryVerdict,
    Facts,
    Run,
    Statement,
    Verdict,
)
from gpuscale.records.configuration import several_units
from gpuscale.records.environment_diff import environment_changes, package_changes
from gpuscale.records.run import busy_hosts
from gpuscale.records.tolerances import THROUGHPUT

ENOUGH_RUNS = 6
_BUSY_ALIKE = 1.5
"""Largest growth, as a factor, of the share of busy runs and of the load on alike sides."""
_UNLIKELY_GAIN = 2.0
"""Largest plausible factor by which the same training can get faster on the same machine."""
_UNLIKELY_LOSS = 0.1
FAR_APART = 3.0
"""Distance between pooled allocations above which a note is added, in declared deviations."""


def notes_of(
    sides: Sides, rows: Sequence[MatchedRow], entries: Sequence[EntryVerdict]
) -> tuple[Statement, ...]:
    """Return all notes on a comparison, most important first."""
    baseline, after = sides.baseline, sides.after
    pairs = [(row.before, row.after) for row in rows if row.obstacle is None and row.before]
    judged = [before for before, _ in pairs]
    return (
        *_emptiness(baseline, rows, after.entries),
        *_idle_overrides(baseline),
        *_several_units(sides),
        *_allocations(baseline, judged),
        *_kinds_of_runs(judged, rows),
        *_outliers(pairs),
        *_pooled_allocations(rows, baseline),
        *_published(rows),
        *_failed_runs(rows),
        *_busy_hosts(rows),
        *_uneven_runs(rows, entries),
        *_left_out(rows, after),
        *_unlikely_numbers(rows, entries),
        *_few_sessions(rows, entries, baseline),
    )


def with_validity(comparison: Comparison, sides: Sides, *, today: date) -> Comparison:
    """Add notes on an expired baseline, a different machine or different software."""
    before, after = sides.environments
    notes = [expiry_note(sides.baseline, today), foreign_note(sides.baseline.hardware, after)]
    nodes = sides.before.nodes, sides.after.nodes
    if changed := environment_changes(before, after, *nodes):
        notes.append(Statement.of("environment_changed", changes=changed))
    packages = [*package_changes(before, after)]
    if packages and any(entry.verdict.is_loss for entry in comparison.entries):
        notes.append(Statement.of("packages_changed", packages=len(packages)))
    return replace(comparison, notes=(*comparison.notes, *filter(None, notes)))


def expiry_note(baseline: Baseline, today: date) -> Statement | None:
    """The note on an expired baseline; None if it has not expired."""
    if baseline.expires_on is None:
        return None
    days = (today - date.fromisoformat(baseline.expires_on)).days
    return Statement.of("expired", on=baseline.expires_on, days=days) if days > 0 else None


def _emptiness(
    baseline: Baseline, rows: Sequence[MatchedRow], currents: Sequence[Entry]
) -> Iterable[Statement]:
    has_entries = bool(baseline.runs or baseline.published)
    if not has_entries:
        yield Statement.of("empty_baseline")
    if not any(current.logs for current in currents):
        yield Statement.of("no_valid_run")
    if not rows and (has_entries or currents):
        yield Statement.of("no_row_left")


def _several_units(sides: Sides) -> Iterable[Statement]:
    entries = (*sides.before.entries, *sides.after.entries)
    if several := several_units(entry.key.configuration for entry in entries):
        yield Statement.of("several_units", conditions=several)


def _idle_overrides(baseline: Baseline) -> Iterable[Statement]:
    keys = [*(run.key for run in baseline.runs), *(fig.key for fig in baseline.published)]
    for override in baseline.tolerances.overrides:
        if not any(override.fits(key) for key in keys):
            wanted = {"case": override.case, "strategy": override.strategy, "gpus": override.gpus}
            conditions = [f"{name} {value}" for name, value in wanted.items() if value is not None]
            yield Statement.of("idle_override", conditions=conditions)


def _allocations(baseline: Baseline, judged: Sequence[Entry]) -> Iterable[Statement]:
    """Note whether each row's spread between allocations is declared or estimated."""
    counts = [len(entry.runs) for entry in judged] or [0]
    few = [entry for entry in judged if 0 < len(entry.runs) < MINIMUM_ALLOCATIONS]
    if few:
        fewest = min(len(entry.runs) for entry in few)
        facts: Facts = {
            "count": fewest,
            "enough": MINIMUM_ALLOCATIONS,
            "deviation_time": baseline.tolerances.allocation_deviation_time,
            "deviation_speedup": baseline.tolerances.allocation_deviation_speedup,
        }
        code = "one_allocation" if fewest == 1 else "few_allocations"
        if len({name for entry in judged for name in entry.runs}) > fewest:
            first = next(entry for entry in few if len(entry.runs) == fewest)
            code = "few_allocations_of_rows"
            facts |= {"row": first.point.key, "other_rows": len(few) - 1}
        yield Statement.of(code, **facts)
    if max(counts) >= MINIMUM_ALLOCATIONS:
        code = "estimated_spread_of_others" if few else "estimated_spread"
        yield Statement.of(code, count=max(counts))


def _kinds_of_runs(judged: Sequence[Entry], rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    """Note if a baseline has few runs, is newer than the results or shares their allocation."""
    few = [entry.point for entry in judged if entry.point.valid_runs < ENOUGH_RUNS]
    if few:
        row, runs = few[0].key, few[0].valid_runs
        yield Statement.of("few_runs", row=row, runs=runs, others=len(few) - 1, enough=ENOUGH_RUNS)
    befores, afters = (
        [run.started_at_s for run in side if run.started_at_s is not None]
        for side in _runs_of_sides(rows)
    )
    if befores and afters and min(befores) > max(afters):
        yield Statement.of("newer_baseline")
    pairs = [(row.before.runs, row.after.runs) for row in rows if row.before and row.after]
    if shared := {allocation for then, now in pairs for allocation in then if allocation in now}:
        yield Statement.of("same_allocation", name=min(shared))


def _runs_of_sides(rows: Sequence[MatchedRow]) -> tuple[list[Run], list[Run]]:
    """Return the valid runs of all rows: those of the baseline, then those of the results."""
    before = [run for row in rows if row.before for run in row.before.valid]
    return before, [run for row in rows if row.after for run in row.after.valid]


def _outliers(pairs: Sequence[tuple[Entry, Entry | None]]) -> Iterable[Statement]:
    """Note outlying runs and outlying allocations, giving the most distant one of each."""
    far_runs = [
        (apart, entry, night, place)
        for entry, tonight in pairs
        for (night, place), apart in outlying_runs(entry, tonight).items()
    ]
    if far_runs:
        apart, entry, night, place = max(far_runs, key=lambda found: abs(found[0]))
        yield Statement.of(
            "outlying_runs",
            run=entry.runs[night][place].index,
            name=night,
            row=entry.point.key,
            difference=exponential(apart) - 1,
            other_runs=len(far_runs) - 1,
        )
    far_nights = []
    for entry, tonight in pairs:
        usual = usual_logs(entry, tonight)
        means = {name: statistics.fmean(logs) for name, logs in usual.items()}
        apart_by_name = outlying_allocations(means).items()
        far_nights += [(abs(apart), apart, name, entry.point.key) for name, apart in apart_by_name]
    if far_nights:
        _, apart, _, key = max(far_nights)
        yield Statement.of(
            "outlying_allocations",
            names=tuple(dict.fromkeys(name for _, _, name, _ in far_nights)),
            row=key,
            difference=exponential(apart) - 1,
            others=len({row for _, _, _, row in far_nights}) - 1,
        )


def _pooled_allocations(rows: Sequence[MatchedRow], baseline: Baseline) -> Iterable[Statement]:
    """Note the pooled nightly run that differs most from the others, if it differs too much."""
    limits = baseline.tolerances.limits
    found = [
        (apart, night, row.key)
        for row in rows
        if row.obstacle is None and row.after is not None
        for night, apart in beside_the_others(row.after).items()
        if abs(apart) > FAR_APART * limits(row.key, THROUGHPUT).allocation_deviation
    ]
    if found:
        apart, night, key = max(found, key=lambda item: abs(item[0]))
        difference = exponential(apart) - 1
        yield Statement.of("differing_allocation", row=key, name=night, difference=difference)


def beside_the_others(current: Entry) -> Mapping[str, float]:
    """Return each allocation's mean log step time minus the mean of the other allocations."""
    means = {night: statistics.fmean(logs) for night, logs in current.logs.items()}
    if len(means) == 1:
        return {}
    total = math.fsum(means.values())
    return {night: mean - (total - mean) / (len(means) - 1) for night, mean in means.items()}


def _published(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    judged = dict.fromkeys(
        (row.figure.precision, row.figure.data, row.after.key.configuration)
        for row in rows
        if row.figure and row.figure.metric is None and row.obstacle is None and row.after
    )
    figures = [row.figure for row in rows if row.figure is not None]
    if judged and not any(figure.nights for figure in figures):
        yield Statement.of("published_without_spread")
    if any(data == "real" != configuration.data for _, data, configuration in judged):
        yield Statement.of("published_on_real_data")
    for precision, _, configuration in judged:
        options = [str(configuration.precision)]
        options += [name for name in ("channels_last", "compiled") if getattr(configuration, name)]
        measured: Facts = {"label": configuration.label, "options": options}
        if precision is None:
            yield Statement.of("published_without_precision", **measured)
        elif precision != configuration.precision:
            yield Statement.of("published_in_other_precision", **measured | {"then": precision})


def _failed_runs(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    """Add notes on failed runs to rows that were judged despite them.

    Rows that could not be judged already give the failures as the reason.
    """
    alike: dict[tuple[int, int, str | None], list[EntryKey]] = {}
    for row in rows:
        if row.after is not None and row.after.failed and row.after.logs:
            failed, valid = len(row.after.failed), row.after.point.valid_runs
            alike.setdefault((failed, failed + valid, first_failure(row.after)), []).append(row.key)
    for (failed, made, failure), keys in alike.items():
        yield Statement.of("failed_runs", rows=keys, failed=failed, made=made, failure=failure)


def _busy_hosts(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    """Note load from other processes during the runs of each side, citing the heaviest load."""
    notes: list[Statement] = []
    degrees: list[tuple[float, float]] = []
    for code, runs in zip(("busy_host_before", "busy_host"), _runs_of_sides(rows), strict=True):
        if busy := busy_hosts(runs):
            host, load = busy[0]
            facts: Facts = {"busy": len(busy), "made": len(runs), "on": host, "load": load}
            notes.append(Statement.of(code, **facts))
            degrees.append((len(busy) / len(runs), load.load_average / load.cores))
    if len(notes) == 2 and all(
        now <= _BUSY_ALIKE * then for then, now in zip(*degrees, strict=True)
    ):
        return [Statement.of("busy_host_alike", **facts)]
    return notes


def _uneven_runs(
    rows: Sequence[MatchedRow], entries: Sequence[EntryVerdict]
) -> Iterable[Statement]:
    """Note inconclusive rows with much more uneven runs than the baseline, if no row is a loss."""
    found = []
    for row, entry in zip(rows, entries, strict=True):
        if entry.verdict is Verdict.INCONCLUSIVE and row.before and row.after:
            sides = (row.before.logs.values(), row.after.logs.values())
            usual, now = (math.sqrt(grouped_log_sample(logs).variance or 0.0) for logs in sides)
            if usual and now > max(0.03, 3 * usual):
                found.append((now, usual, row.key))
    if found and not any(entry.verdict.is_loss for entry in entries):
        now, usual, key = max(found)
        more = len(found) - 1
        yield Statement.of("uneven_runs", row=key, others=more, deviation=now, usual=usual)


def _left_out(rows: Sequence[MatchedRow], after: Side) -> Iterable[Statement]:
    """Note entries not judged because a published figure is compared with only one entry."""
    for row in rows:
        if row.figure is None or row.after is None:
            continue
        for entry in after.by_row[row.key]:
            if entry is not row.after:
                found = point_differences(row.after.point, entry.point)
                yield Statement.of("not_judged", row=row.key, differences=found)


def _unlikely_numbers(
    rows: Sequence[MatchedRow], entries: Sequence[EntryVerdict]
) -> Iterable[Statement]:
    """Add notes on training that was not verified, and on values that suggest a unit error."""
    after = (row.after.key.configuration for row in rows if row.after is not None)
    if note := unchecked_training_note(after):
        yield note
    for entry in entries:
        for side, scaling in (("baseline", entry.baseline), ("results", entry.current)):
            if note := unit_error_note(entry.key, scaling.efficiency):
                yield Statement.of("unit_error_of_side", side=side, error=note)
    found = [
        (max(factor, 1 / factor if factor else math.inf), factor, entry.key)
        for entry in entries
        if entry.change and entry.verdict in (Verdict.IMPROVED, Verdict.REGRESSED)
        for factor in [1 + entry.change.value]
        if not _UNLIKELY_LOSS <= factor <= _UNLIKELY_GAIN
    ]
    if found:
        _, factor, key = max(found)
        yield Statement.of("unlikely_change", row=key, factor=factor, others=len(found) - 1)


def _few_sessions(
    rows: Sequence[MatchedRow], entries: Sequence[EntryVerdict], baseline: Baseline
) -> Iterable[Statement]:
    """Warn if too few sessions exist to distinguish a gain from differences between sessions."""
    if any(entry.verdict is Verdict.IMPROVED for entry in entries):
        sides = ((row.before, row.after) for row in rows if row.before and row.after)
        before, now = map(max, zip(*((len(a.runs), len(b.runs)) for a, b in sides), strict=True))
        if before < MINIMUM_ALLOCATIONS:
            deviation = baseline.tolerances.allocation_deviation_time
            yield Statement.of("few_sessions", sessions=before, now=now, deviation_time=deviation)
