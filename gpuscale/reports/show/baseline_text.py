"""Baselines as text: where from, what they hold, and where two of them differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain

from gpuscale.compare.hardware import hardware_label
from gpuscale.compare.matching import Entry, side_of_baseline
from gpuscale.compare.notes import expiry_note
from gpuscale.recording import entries_of
from gpuscale.records import (
    Baseline,
    BaselineChange,
    Comparison,
    Configuration,
    PublishedFigure,
    Run,
)
from gpuscale.reports import phrases
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.screen import fitted, table
from gpuscale.reports.show.scaling_rows import measured_row, published_row
from gpuscale.reports.show.scaling_table import (
    PAIR_HEADERS,
    cells_under,
    hours_header,
    row_cells,
)
from gpuscale.scaling import Figures, geometric_mean, published_speedup
from gpuscale.statistics.estimates import log_sample
from gpuscale.units import format_seconds, significant

_TIMED = {"job": "whole job", "training_loop": "training loop", "epoch": "epoch"}


def baseline_text(
    baseline: Baseline, today: date, *, columns: int | None = None, steps: int | None = None
) -> str:
    """The baseline as text, without a line break at its end; after its last day it says so.

    With a number of `steps` there are the GPU-hours that they take. Lines keep to so many columns;
    None is where there is room for any line.
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
        yield f"measured  latest session begun {baseline.recorded_at}{tool}"
    if baseline.recorded_by is not None:
        yield f"recorded  by {baseline.recorded_by}"
    if baseline.history:
        yield f"updated   {baseline.history[-1].at}, see below"
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
        yield f"software  {software}"
        yield f"          in {', '.join(places)}"


def _history_lines(change: BaselineChange) -> Iterator[str]:
    by = f" by {change.by}" if change.by else ""
    yield f"changed   {change.at}{by}: {change.reason}"
    for entry, runs in entries_of(change.replaced).items():
        made = _runs_text(len(runs), len({run.allocation for run in runs}))
        yield f"          {entry.key.label} was {step_time_text(runs)} ({made})"
    if change.added:
        yield f"          new: {', '.join(change.added)}"


def _published_table(baseline: Baseline, columns: int | None, steps: int | None) -> str:
    figures = {figure.key: figure for figure in baseline.published}
    headers = ["case", "gpus", "nodes", "batch/gpu", "runs", "published", "of", *PAIR_HEADERS]
    headers += hours_header(steps)
    device = baseline.hardware.device
    rows = [published_row(figure, figures, device, steps) for figure in baseline.published]
    further = [
        {
            "case": figure.key.name,
            "nodes": str(figure.nodes),
            "runs": str(figure.runs),
            **dict(zip(("published", "of"), _published_text(figure), strict=True)),
        }
        for figure in baseline.published
    ]
    cells = cells_under(headers, rows, further)
    return table(headers, cells, columns, first=("published", "of"), left=headers)


def _measured_blocks(
    entries: Sequence[Entry], columns: int | None, steps: int | None
) -> Iterator[list[str]]:
    runs = "runs (allocations)"
    made = [{runs: f"{entry.point.valid_runs} ({len(entry.runs)})"} for entry in entries]
    headers = ["case", "gpus", "batch/gpu", runs, "step time", *PAIR_HEADERS]
    headers += hours_header(steps)
    rows = [measured_row(entry.point, steps) for entry in entries]
    cells = cells_under(headers, rows, made)
    yield [table(headers, cells, columns, first=("step time", *PAIR_HEADERS), left=headers)]
    configurations = phrases.configurations_text(row.configuration for row in rows)
    yield [f"{configurations}; intervals: 95%, over runs"]


def step_time_text(runs: Sequence[Run]) -> str:
    """`4.12 ms ±0.3 %` of valid runs; the spread is the 95% interval over them."""
    mean = geometric_mean(log_sample([run.log_step_time for run in runs]))
    return phrases.with_spread(mean, format_seconds)


def _runs_text(runs: int, allocations: int) -> str:
    return f"{phrases.counted(runs, 'run')} in {phrases.counted(allocations, 'allocation')}"


def _published_text(figure: PublishedFigure) -> tuple[str, str]:
    """`1520 samples/s` and `throughput`, or `41.2 s` and `wall clock of the epoch`."""
    if figure.samples_per_s is not None:
        return f"{significant(figure.samples_per_s)} samples/s", "throughput"
    time = phrases.known_text(figure.mean_time_s, format_seconds)
    return time, UNKNOWN if figure.timed is None else f"wall clock of the {_TIMED[figure.timed]}"


def _published_pair(figure: PublishedFigure, figures: Figures) -> list[str]:
    """Speedup and efficiency."""
    value = published_speedup(figure, figures)
    return [UNKNOWN if value is None else f"{value / over:.2f}" for over in (1, figure.gpus)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One row on both sides; None on a side that lacks it, but never on both."""

    old: Entry | PublishedFigure | None
    new: Entry | PublishedFigure | None
    remark: str = ""
    """Said beside its name: why one side lacks it, or why it cannot be accepted."""


def changes_text(
    changes: Sequence[EntryChange], before: Baseline, after: Baseline, comparison: Comparison
) -> str:
    """The changes, a block of lines each, without a line break at the end.

    Speedups are taken over the runs on 1 GPU of the baseline that has the entry. The comparison
    judges the measured entries of `after` against `before`.
    """
    names = phrases.set_apart([run.configuration for run in (*before.runs, *after.runs)])
    # The first of a key is the measured entry's; that of a published figure comes behind it.
    verdicts = {(v.configuration, v.key.gpus): v for v in reversed(comparison.entries)}
    figures = [{f.key: f for f in baseline.published} for baseline in (before, after)]
    blocks = []
    for change in changes:
        sides = (change.old, change.new)
        name = next(_name(side, names) for side in sides if side is not None)
        lines = [f"{name}: {change.remark}" if change.remark else name]
        old, new = map(_values, sides, figures)
        for what in dict.fromkeys((*old, *new)):
            values = [side[what] for side in (old, new) if what in side]
            if len(values) == 1 or values[0] != values[1]:
                lines.append(f"  {what:<11} {' → '.join(values)}")
        if isinstance(change.old, Entry) and isinstance(change.new, Entry):
            point = change.old.point
            if (verdict := verdicts.get((point.configuration, point.key.gpus))) is not None:
                word = phrases.verdict_word(verdict.verdict)
                lines.append(f"  {'judged':<11} {word}: {reason_text(verdict)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _name(entry: Entry | PublishedFigure, names: Mapping[Configuration, str]) -> str:
    if isinstance(entry, PublishedFigure):
        return f"{entry.key.label}, published"
    return f"{names[entry.point.configuration]} on {phrases.gpus_text(entry.point.key.gpus)}"


def _values(entry: Entry | PublishedFigure | None, figures: Figures) -> dict[str, str]:
    """The values of one side, by the words for them."""
    if entry is None:
        return {}
    if isinstance(entry, Entry):
        point = entry.point
        numbers = row_cells(measured_row(point))
        cells = {**numbers, "measured": _runs_text(point.valid_runs, len(entry.runs))}
        pair = PAIR_HEADERS if point.key.gpus > 1 else ()
        return {name: cells[name] for name in ("step time", *pair, "measured", "batch/gpu")}
    values = {"figure": "{} ({})".format(*_published_text(entry))}
    if entry.gpus > 1:
        values |= zip(PAIR_HEADERS, _published_pair(entry, figures), strict=True)
    return values | {"runs": str(entry.runs), "batch/gpu": str(entry.batch_per_gpu)}
