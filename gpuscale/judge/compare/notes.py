"""Notes on a comparison, such as an uncertain baseline, omitted rows or implausible numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gpuscale.analysis.estimates import exponential
from gpuscale.analysis.outliers import outlying_allocations
from gpuscale.analysis.scaling import Entry, unchecked_training_note, unit_error_note
from gpuscale.base.grouping import by_key
from gpuscale.judge.compare.matching import MatchedRow, first_failure
from gpuscale.judge.compare.verdict import Judgement
from gpuscale.judge.sides import Sides, outlying_runs, usual_means
from gpuscale.records import Baseline, Comparison, Run, Statement, Verdict
from gpuscale.records.configuration import several_units
from gpuscale.records.environment_diff import environment_changes, package_changes
from gpuscale.records.run import busy_hosts, were_hosts_busy
from gpuscale.records.verdict import Facts

_UNLIKELY_GAIN, _UNLIKELY_LOSS = 2.0, 0.1
"""Factors beyond which the same training cannot plausibly get faster or slower."""


def notes_of(sides: Sides, judgements: Sequence[Judgement]) -> tuple[Statement, ...]:
    """Return all notes on a comparison, most important first."""
    baseline, after = sides.baseline, sides.after
    rows = [judgement.row for judgement in judgements]
    pairs = [(row.before, row.after) for row in rows if row.obstacle is None and row.before]
    units = several_units(e.key.configuration for e in (*sides.before.entries, *after.entries))
    return (
        *_emptiness(baseline, rows, after.entries),
        *([Statement.of("several_units", conditions=units)] if units else []),
        *_few_sessions(judgements),
        *_close_sessions(sides),
        *_unused_overrides(baseline),
        *_swapped_or_same(rows),
        *_outliers(pairs),
        *_published(rows),
        *_failed_runs(rows),
        *_busy_hosts(rows),
        *_unlikely_numbers(judgements),
    )


def with_environment_changes(comparison: Comparison, sides: Sides) -> Comparison:
    """Add a note on a changed environment and, if a row got worse, one on changed packages."""
    before, after = sides.before.environments, sides.after.environments
    notes = []
    nodes = sides.before.nodes, sides.after.nodes
    recent = [note.facts["changes"] for note in comparison.notes if note.code == "recently_changed"]
    told = {(change.name, change.after) for changes in recent for change in changes}
    found = environment_changes(before, after, *nodes)
    if changed := [each for each in found if (each.name, each.after) not in told]:
        notes.append(Statement.of("environment_changed", changes=tuple(changed)))
    packages = [*package_changes(before, after)]
    if packages and any(entry.verdict.is_loss for entry in comparison.entries):
        notes.append(Statement.of("packages_changed", packages=len(packages)))
    return replace(comparison, notes=(*comparison.notes, *notes))


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


def _few_sessions(judgements: Sequence[Judgement]) -> Iterable[Statement]:
    """Yield a note on the assumed spread between allocations if the baseline has too few."""
    moved = (Verdict.IMPROVED, Verdict.REGRESSED)
    for code, verdicts in (("few_sessions", moved), ("assumed_spread", (Verdict.OK,))):
        found = [each for each in judgements if each.entry.verdict in verdicts]
        assumed = [(j.tolerated_deviation, j.assumed_deviation, j.decided_by) for j in found]
        if known := [(up_to or 0.0, by, name or "") for up_to, by, name in assumed if by]:
            up_to, by, name = max(known)
            facts = Facts(deviation=by, name=name.partition("(")[0])
            yield Statement(code, facts | (Facts(up_to=up_to) if up_to else Facts()))
            return


def _close_sessions(sides: Sides) -> Iterable[Statement]:
    """Yield a note if the baseline's sessions ran on one host and began within an hour."""
    runs = [run for entry in sides.before.entries for run in entry.valid]
    starts = [run.started_at_s for run in runs if run.started_at_s is not None]
    hosts = {where.host for where in sides.before.by_allocation.values()}
    has_many = len({run.allocation for run in runs}) > 1
    if has_many and len(hosts) == 1 and starts and (span_s := max(starts) - min(starts)) < 3600:
        yield Statement.of("close_sessions", span_s=span_s)


def _unused_overrides(baseline: Baseline) -> Iterable[Statement]:
    """Yield a note on each tolerance override whose case or strategy the baseline lacks."""
    keys = [*(run.key for run in baseline.runs), *(each.key for each in baseline.published)]
    for number, override in enumerate(baseline.tolerances.overrides if keys else ()):
        for field in ("case", "strategy"):
            wanted, known = getattr(override, field), {getattr(key, field) for key in keys}
            if wanted is not None and wanted not in known:
                name, one = f"overrides[{number}]", f"{field} '{wanted}'"
                yield Statement.of("unused_override", name=name, one=one, names=sorted(known))


def _swapped_or_same(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    """Yield notes if the baseline is newer than the results or shares an allocation with them."""
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
    """Yield notes on outlying baseline runs and allocations; pairs are (baseline, current)."""
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
            row=entry.key.row,
            difference=exponential(apart) - 1,
            other_runs=len(far_runs) - 1,
        )
    yield from outlying_nights(pairs)


def outlying_nights(pairs: Iterable[tuple[Entry, Entry | None]]) -> Iterable[Statement]:
    """Yield a note if there are outlying baseline allocations; pairs are (baseline, current)."""
    if facts := _of_worst((one, outlying_allocations(usual_means(one, now))) for one, now in pairs):
        yield Statement.of("outlying_allocations", **facts)


def _of_worst(found: Iterable[tuple[Entry, Mapping[str, float]]]) -> Facts:
    """Return a note's facts from (entry, log deviation of each outlier); empty without outliers."""
    far = [
        (abs(apart), apart, name, entry.key.row)
        for entry, apart_by_name in found
        for name, apart in apart_by_name.items()
    ]
    if not far:
        return Facts()
    _, apart, _, key = max(far)
    names, rows = dict.fromkeys(name for _, _, name, _ in far), {row for *_, row in far}
    difference, others = exponential(apart) - 1, len(rows) - 1
    return Facts(names=tuple(names), row=key, difference=difference, others=others)


def _published(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    judged = dict.fromkeys(
        (row.figure.precision, row.after.key.configuration)
        for row in rows
        if row.figure and row.figure.metric is None and row.obstacle is None and row.after
    )
    for precision, configuration in judged:
        if precision != configuration.precision:
            yield Statement.of(
                "published_in_other_precision",
                then=precision or "an unnamed precision",
                label=configuration.label,
                now=configuration.precision,
            )


def _failed_runs(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    """Yield notes on failed runs of rows that also have valid runs."""
    judged = ((row.key, row.after) for row in rows if row.after and row.after.logs)
    alike = by_key(
        ((len(after.failed), after.point.valid_runs, first_failure(after)), key)
        for key, after in judged
        if after.failed
    )
    for (failed, valid, failure), keys in alike.items():
        made = failed + valid
        yield Statement.of("failed_runs", rows=keys, failed=failed, made=made, failure=failure)


def _busy_hosts(rows: Sequence[MatchedRow]) -> Iterable[Statement]:
    codes = (("busy_host_before", "seldom_busy_host_before"), ("busy_host", "seldom_busy_host"))
    for (code, seldom_code), runs in zip(codes, _runs_of_sides(rows), strict=True):
        if busy := busy_hosts(runs):
            host, load = busy[0]
            code = code if were_hosts_busy(runs) else seldom_code
            yield Statement.of(code, busy=len(busy), made=len(runs), on=host, load=load)


def _unlikely_numbers(judgements: Sequence[Judgement]) -> Iterable[Statement]:
    entries = [judgement.entry for judgement in judgements]
    after = (each.row.after.key for each in judgements if each.row.after is not None)
    if note := unchecked_training_note(key.configuration for key in after if key.gpus > 1):
        yield note
    for entry in entries:
        if note := unit_error_note(entry.key, entry.current.efficiency):
            yield note
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
