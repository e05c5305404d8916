"""Baselines as text: their origin, their entries, and the history of their changes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from gpuscale.analysis.estimates import log_sample
from gpuscale.analysis.scaling import Entry, geometric_mean, level_of, published_points
from gpuscale.base.text import format_seconds, significant
from gpuscale.judge.baseline import entries_of
from gpuscale.judge.sides import machine_label, side_of_baseline
from gpuscale.records import (
    Baseline,
    BaselineChange,
    PointKey,
    Run,
    ScalingPoint,
)
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, level_columns, level_text, renamed, text_table
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.screen import PLAIN_COLUMNS, fitted
from gpuscale.reports.show import (
    PAIR_HEADERS,
    cells_under,
    headers_of,
    uncertain_note,
)

_TIMED: Mapping[str | None, str] = {
    "job": "whole job",
    "training_loop": "training loop",
    "epoch": "epoch",
}


def baseline_text(
    baseline: Baseline, *, columns: int = PLAIN_COLUMNS, steps: int | None = None
) -> str:
    """Return the baseline as text, without a final line break.

    If `steps` is given, the tables show the GPU-hours for this number of training steps.
    """
    measured = side_of_baseline(baseline).entries
    blocks = (
        _origin_of_baseline(baseline),
        [_published_table(baseline, columns, steps)] if baseline.published else (),
        *(_measured_blocks(measured, columns, steps) if measured else ()),
        () if baseline.published or measured else ["no entry"],
        chain.from_iterable(map(_history_lines, baseline.history)),
    )
    texts = ("\n".join(fitted(block, columns)) for block in blocks)
    return "\n\n".join(text for text in texts if text)


def _origin_of_baseline(baseline: Baseline) -> Iterator[str]:
    yield f"baseline  {baseline.name}: {machine_label(baseline)}"
    if baseline.source is not None:
        parts = [baseline.source.title, baseline.source.published, baseline.source.url]
        yield f"source    {', '.join(part for part in parts if part)}"
        if baseline.source.note:
            yield f"          {baseline.source.note}"
    if baseline.recorded_at is not None:
        version = baseline.gpuscale_version
        tool = f", with gpuscale {version}" if version else ""
        when = phrases.times_text(baseline.runs, baseline.recorded_at)
        yield f"measured  {when} UTC{tool}"
    if baseline.recorded_by is not None:
        yield f"recorded  by {baseline.recorded_by}"
    if baseline.history:
        yield f"updated   {phrases.to_minutes(baseline.history[-1].at)} UTC, see below"
    by_software: dict[str, list[str]] = {}
    for allocation, environment in baseline.environments.items():
        host = environment.host
        # Without a scheduler, the allocation's name already contains the host.
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
        made = runs_text(len(runs), len({run.allocation for run in runs}))
        yield f"          {entry.label} was {step_time_text(runs)} ({made})"
    if change.added:
        yield f"          new: {', '.join(change.added)}"


def _published_table(baseline: Baseline, columns: int, steps: int | None) -> str:
    headers = ["case", "GPUs", "nodes", "batch/GPU", "runs", "reference", "of", *PAIR_HEADERS]
    headers += ["GPU-hours"] if steps else []
    points = [*published_points(baseline).values()]
    further = [{"case": Cell(point.configuration.label), **_published(point)} for point in points]
    cells = renamed(cells_under(headers, points, further, steps), headers_of(points))
    return text_table(cells, columns, first=("reference", "of"))


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
    cells = renamed(cells_under(headers, points, made, steps), headers_of(points))
    yield [text_table(cells, columns, first=(*levels, *PAIR_HEADERS))]
    configurations = phrases.configurations_text(point.configuration for point in points)
    note = "; ".join(filter(None, (configurations, "intervals: 95 %, over runs")))
    yield [note, *uncertain_note(points)]


def step_time_text(runs: Sequence[Run]) -> str:
    """Return the geometric mean of a row's step times with its 95 % interval: `4.12 ms ±0.3 %`."""
    mean = geometric_mean(log_sample([run.log_cost for run in runs]))
    return level_text(level_of(PointKey.of(runs[0]), mean))


def runs_text(runs: int, allocations: int) -> str:
    """Format how often a row was measured: `12 runs in 4 allocations`."""
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
