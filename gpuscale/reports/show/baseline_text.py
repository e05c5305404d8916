"""Baselines as text: their origin, their entries, and the differences between two baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain

from gpuscale.analysis.scaling import Entry, geometric_mean, level_of, published_points
from gpuscale.analysis.statistics.estimates import log_sample
from gpuscale.base.units import format_seconds, significant
from gpuscale.judge.compare.hardware import hardware_label
from gpuscale.judge.compare.notes import expiry_note
from gpuscale.judge.recording import entries_of
from gpuscale.judge.sides import side_of_baseline
from gpuscale.records import (
    Baseline,
    BaselineChange,
    Comparison,
    Configuration,
    EntryKey,
    PointKey,
    PublishedFigure,
    Run,
    ScalingPoint,
)
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, level_columns, level_text, text_table
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.screen import PLAIN_COLUMNS, fitted
from gpuscale.reports.show.scaling_table import (
    PAIR_HEADERS,
    cells_under,
    wide_interval_note,
)

_TIMED: Mapping[str | None, str] = {
    "job": "whole job",
    "training_loop": "training loop",
    "epoch": "epoch",
}


def baseline_text(
    baseline: Baseline, today: date, *, columns: int = PLAIN_COLUMNS, steps: int | None = None
) -> str:
    """Return the baseline as text, without a final line break, with a note if it has expired.

    If `steps` is given, the tables show the GPU-hours for this number of training steps.
    """
    measured = side_of_baseline(baseline).entries
    note = expiry_note(baseline, today)
    blocks = (
        _origin_of_baseline(baseline),
        [_published_table(baseline, columns, steps)] if baseline.published else (),
        *(_measured_blocks(measured, columns, steps) if measured else ()),
        () if baseline.published or measured else ["no entry"],
        chain.from_iterable(map(_history_lines, baseline.history)),
        () if note is None else [f"note: {statement_text(note)}"],
    )
    texts = ("\n".join(fitted(block, columns)) for block in blocks)
    return "\n\n".join(text for text in texts if text)


def _origin_of_baseline(baseline: Baseline) -> Iterator[str]:
    yield f"baseline  {baseline.name}: {hardware_label(baseline.cluster, baseline.hardware)}"
    if baseline.source is not None:
        parts = [baseline.source.title, baseline.source.published, baseline.source.url]
        yield f"source    {', '.join(part for part in parts if part)}"
        if baseline.source.note:
            yield f"          {baseline.source.note}"
    if baseline.recorded_at is not None:
        version = baseline.gpuscale_version
        tool = f", with gpuscale {version}" if version else ""
        yield f"measured  latest session begun {phrases.to_minutes(baseline.recorded_at)} UTC{tool}"
    if baseline.recorded_by is not None:
        yield f"recorded  by {baseline.recorded_by}"
    if baseline.history:
        yield f"updated   {phrases.to_minutes(baseline.history[-1].at)} UTC, see below"
    if baseline.expires_on is not None:
        yield f"expires   {baseline.expires_on}"
    by_software: dict[str, list[str]] = {}
    for allocation, environment in baseline.environments.items():
        host = environment.host
        # Without a scheduler an allocation is named by its host already.
        named = host is None or host in allocation
        place = allocation if named else f"{allocation} on {host}"
        by_software.setdefault(phrases.software_text(environment), []).append(place)
    for software, places in by_software.items():
        yield f"software  {software or UNKNOWN}"
        yield phrases.to_minutes(f"          in {', '.join(places)}")


def _history_lines(change: BaselineChange) -> Iterator[str]:
    by = f" by {change.by}" if change.by else ""
    yield f"changed   {phrases.to_minutes(change.at)} UTC{by}: {change.reason}"
    for entry, runs in entries_of(change.replaced).items():
        made = _runs_text(len(runs), len({run.allocation for run in runs}))
        yield f"          {entry.key.label} was {step_time_text(runs)} ({made})"
    if change.added:
        yield f"          new: {', '.join(change.added)}"


def _published_table(baseline: Baseline, columns: int, steps: int | None) -> str:
    headers = ["case", "GPUs", "nodes", "batch/GPU", "runs", "reference", "of", *PAIR_HEADERS]
    headers += ["GPU-hours"] if steps else []
    points = [*published_points(baseline).values()]
    further = [{"case": Cell(point.configuration.label), **_published(point)} for point in points]
    cells = cells_under(headers, points, further, steps)
    return text_table(cells, columns, first=("reference", "of"), left=headers)


def _measured_blocks(
    entries: Sequence[Entry], columns: int, steps: int | None
) -> Iterator[list[str]]:
    runs = "runs (allocations)"
    made = [{runs: Cell(f"{entry.point.valid_runs} ({len(entry.runs)})")} for entry in entries]
    points = [entry.point for entry in entries]
    levels = [*level_columns(point.configuration for point in points)]
    levels = [name for name in levels if name != "samples/s"]
    headers = ["case", "GPUs", "batch/GPU", runs, *levels, *PAIR_HEADERS]
    headers += ["GPU-hours"] if steps else []
    cells = cells_under(headers, points, made, steps)
    yield [text_table(cells, columns, first=(*levels, *PAIR_HEADERS), left=headers)]
    configurations = phrases.configurations_text(point.configuration for point in points)
    note = "; ".join(filter(None, (configurations, "intervals: 95 %, over runs")))
    yield [note, *wide_interval_note(points)]


def step_time_text(runs: Sequence[Run]) -> str:
    """Return the mean step time of a row's valid runs with its 95 % interval: `4.12 ms ±0.3 %`."""
    mean = geometric_mean(log_sample([run.log_cost for run in runs]))
    return level_text(level_of(PointKey.of(runs[0]), mean))


def _runs_text(runs: int, allocations: int) -> str:
    return f"{phrases.counted(runs, 'run')} in {phrases.counted(allocations, 'allocation')}"


def _published(point: ScalingPoint) -> dict[str, Cell]:
    """Return a published value and what it measures: `41.2 s`, `wall clock of the epoch`."""
    if point.samples_per_s is not None:
        amount, what = f"{significant(point.samples_per_s.value)} samples/s", "throughput"
    elif point.value is not None:
        amount, what = f"{significant(point.value.value)} {point.unit}".strip(), "reference"
    else:
        assert point.figure is not None, "a published point has its figure"
        amount = phrases.known_text(point.figure.mean_time_s, format_seconds)
        what = f"wall clock of the {_TIMED[point.figure.timed]}"
    return {"reference": Cell(amount), "of": Cell(what)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """A row's entries in two baselines; at most one is None, if that baseline lacks the row."""

    old: Entry | PublishedFigure | None
    new: Entry | PublishedFigure | None
    remark: str = ""
    """Text after the name of the row: why one baseline lacks it, or why it cannot be accepted."""


def changes_text(
    changes: Sequence[EntryChange],
    before: Baseline,
    after: Baseline,
    comparison: Comparison,
    judged: str = "judged",
) -> str:
    """Describe each change in a block of lines, without a final line break.

    Each speedup is relative to the runs on 1 GPU in the same baseline. The comparison judges the
    new runs of `after` against `before`; `judged` is the label of its verdicts.
    """
    names = phrases.set_apart([run.configuration for run in (*before.runs, *after.runs)])
    # For each key, the verdict on the measured entry precedes that on a published figure.
    verdicts = {(v.configuration, v.key.gpus): v for v in reversed(comparison.entries)}
    published = [*map(published_points, (before, after))]
    blocks = []
    for change in changes:
        sides = (change.old, change.new)
        name = next(_name(side, names) for side in sides if side is not None)
        lines = [f"{name}: {change.remark}" if change.remark else name]
        old, new = map(_values, sides, published)
        for what in dict.fromkeys((*old, *new)):
            values = [side[what] for side in (old, new) if what in side]
            if len(values) == 1 or values[0] != values[1]:
                lines.append(f"  {what:<11} {' → '.join(values)}")
        if isinstance(change.old, Entry) and isinstance(change.new, Entry):
            point = change.old.point
            if (verdict := verdicts.get((point.configuration, point.key.gpus))) is not None:
                word = phrases.verdict_word(verdict.verdict)
                lines.append(f"  {judged:<11} {word}: {reason_text(verdict)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _name(entry: Entry | PublishedFigure, names: Mapping[Configuration, str]) -> str:
    if isinstance(entry, PublishedFigure):
        return f"{entry.key.label}, published"
    return f"{names[entry.point.configuration]} on {phrases.gpus_text(entry.point.key.gpus)}"


def _values(
    entry: Entry | PublishedFigure | None, published: Mapping[EntryKey, ScalingPoint]
) -> dict[str, str]:
    """Return the values of an entry, keyed by name; empty if there is no entry."""
    if entry is None:
        return {}
    further: dict[str, Cell]
    if isinstance(entry, Entry):
        point, runs = entry.point, _runs_text(entry.point.valid_runs, len(entry.runs))
        further = {"measured": Cell(runs)}
        names = ("step time", *PAIR_HEADERS, "measured", "batch/GPU")
    else:
        point = published[entry.key]
        cells = _published(point)
        further = {"figure": Cell(f"{cells['reference'].text} ({cells['of'].text})")}
        names = ("figure", *PAIR_HEADERS, "runs", "batch/GPU")
    (row,) = cells_under(names, [point], [further])
    alone = point.gpus == 1
    return {name: c.line for name, c in row.items() if not (alone and name in PAIR_HEADERS)}
