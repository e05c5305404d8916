"""Results and baselines as tables: where from, their numbers, and where two baselines differ."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import chain
from pathlib import Path

from gpuscale.compare.hardware import hardware_label
from gpuscale.compare.matching import Entry, side_of_baseline
from gpuscale.compare.notes import expiry_note
from gpuscale.printable import visible
from gpuscale.recording import entries_of
from gpuscale.records import (
    Baseline,
    BaselineChange,
    Comparison,
    Configuration,
    EntryKey,
    PublishedFigure,
    Results,
    Run,
)
from gpuscale.records.environment import gpu_places
from gpuscale.reports import phrases
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.scaling_rows import gpu_hours
from gpuscale.reports.screen import fitted, table
from gpuscale.reports.step_time import budget_lines, phase_lines
from gpuscale.scaling import (
    Figures,
    PointKey,
    ScalingPoint,
    geometric_mean,
    published_speedup,
    scaling_points,
    step_time_ratios,
    unchecked_training_note,
    unit_error_note,
)
from gpuscale.statistics.estimates import log_sample
from gpuscale.statistics.steadiness import SHORTEST_JUDGED_S, slow_windows
from gpuscale.strategies import STRATEGIES
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

_FIRST = ("step time", "speedup", "efficiency", "samples/s", "runs")
"""Columns that a narrow terminal shows first."""
_DEVICES = {"cpu": "cpu, over gloo", "cuda": "cuda, over NCCL"}
_PAIR_HEADERS = ("speedup", "efficiency")
_TIMED = {"job": "whole job", "training_loop": "training loop", "epoch": "epoch"}


def results_text(
    results: Results,
    *,
    phases: bool = False,
    path: Path | None = None,
    now: datetime | None = None,
    columns: int | None = None,
    steps: int | None = None,
) -> str:
    """The scaling table of the results or else their phases, without a line break at its end.

    `path` is where they were read from. Of another day than `now` they say how old they are.
    With a number of `steps` the table has the GPU-hours that they take.
    Lines keep to so many columns; None is where there is room for any line.
    """
    lines = [*fitted(_origin_of_results(results, path, now), columns)]
    if phases:
        lines += phase_lines(results.runs, columns)
    else:
        lines += scaling_lines(results, columns, steps) if results.runs else ["no run was recorded"]
        lines += fitted(_failures(results), columns)
    return "\n".join(lines)


def scaling_lines(results: Results, columns: int | None, steps: int | None = None) -> Iterator[str]:
    """The scaling table of the results, with its notes and where the lost efficiency went."""
    runs = results.runs
    points = scaling_points(runs)
    yield from scaling_table(points, runs, columns=columns, steps=steps).splitlines()
    yield ""
    lines = [
        *table_notes(points),
        *_slow_windows(runs),
        *_ratio_lines(runs),
        *budget_lines(runs),
    ]
    places = gpu_places([results.environment]).items()
    named = (f"{uuid}: {at}" for uuid, at in places if any(uuid in line for line in lines))
    yield from fitted((*lines, *named), columns)


def scaling_table(
    points: Sequence[ScalingPoint],
    runs: Iterable[Run] = (),
    *,
    columns: int | None = None,
    steps: int | None = None,
) -> str:
    """A row for each point; intervals are 95%, and absent where a single run gives none.

    Of the runs that the points are made of, unsteady ones are told from failed ones.
    """
    headers = ["case", "gpus", "scaling", "batch/gpu", "runs", "step time", "samples/s"]
    if any(point.configuration.batch is not None for point in points):
        headers.append("epoch")
    headers += _PAIR_HEADERS
    headers += _hours_header(steps)
    if any(point.samples_per_j is not None for point in points):
        headers.append("samples/J")
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    headers += ["peak host memory"] if on_cpu else ["GPU util", "peak memory"]
    unsteady = Counter(
        PointKey.of(run) for run in runs if run.failure and run.failure.kind == "unsteady"
    )
    made = []
    for point in points:
        of_point = unsteady[point.point_key]
        counts = {"unsteady": of_point, "failed": point.failed_runs - of_point}
        without = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        made.append(f"{point.valid_runs} ({without})" if without else str(point.valid_runs))
    return table(headers, _rows(points, headers, "runs", made, steps), columns, first=_FIRST)


def _rows(
    points: Sequence[ScalingPoint],
    headers: Sequence[str],
    name: str,
    texts: Iterable[str],
    steps: int | None,
) -> list[list[str]]:
    """The cells of each point under these headers; its text is under the header of that name."""
    names = phrases.set_apart([point.configuration for point in points])
    rows = []
    for point, text in zip(points, texts, strict=True):
        hours = phrases.with_spread(
            gpu_hours(point.step_time_s, point.key.gpus, steps), significant
        )
        cells = {
            **_cells(point),
            "GPU-hours": hours,
            "case": names[point.configuration],
            name: text,
        }
        rows.append([cells[header] for header in headers])
    return rows


def _hours_header(steps: int | None) -> list[str]:
    return [] if steps is None else ["GPU-hours"]


def _cells(point: ScalingPoint) -> dict[str, str]:
    """The numbers of a point as tables show them, by the headers of their columns."""
    used, peak = point.gpu_utilization, point.peak_memory_bytes
    on_host = point.peak_host_memory_bytes
    return {
        "gpus": str(point.key.gpus),
        "scaling": point.configuration.scaling or UNKNOWN,
        "batch/gpu": str(point.batch_per_gpu),
        "step time": phrases.with_spread(point.step_time_s, format_seconds),
        "samples/s": phrases.with_spread(point.samples_per_s, significant),
        "epoch": UNKNOWN if point.epoch_s is None else format_seconds(point.epoch_s),
        "speedup": phrases.interval_text(point.speedup),
        "efficiency": phrases.interval_text(point.efficiency),
        "samples/J": phrases.with_spread(point.samples_per_j, significant),
        "GPU util": UNKNOWN if used is None else format_percent(used),
        "peak memory": UNKNOWN if peak is None else format_bytes(peak),
        "peak host memory": UNKNOWN if on_host is None else format_bytes(on_host),
    }


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """The lines below the table: how it was measured, and what cannot be right."""
    several = any(point.valid_runs > 1 for point in points)
    intervals = "intervals: 95%, over runs" if several else "a single run gives no interval"
    yield f"{phrases.configurations_text(point.configuration for point in points)}; {intervals}"
    times_s = (point.step_time_s for point in points)
    spreads = (phrases.spread_text(time_s).strip() for time_s in times_s if time_s is not None)
    if wide := next((spread for spread in spreads if "×" in spread), None):
        yield (
            f"{wide}: a wide interval, as factors of the value; measure more runs, "
            "or on a quieter machine"
        )
    if note := unchecked_training_note(point.configuration for point in points):
        yield statement_text(note)
    several_gpus = (point for point in points if point.key.gpus > 1)
    yield from _strategy_notes(point.configuration.strategy for point in several_gpus)
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield statement_text(note)


def _ratio_lines(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each configuration of a strategy that was measured beside the one it wraps."""
    ratios = step_time_ratios(runs)
    names = phrases.set_apart([key.configuration for key in ratios])
    for configuration, name in names.items():
        found = ", ".join(
            f"{phrases.interval_text(ratio)} on {phrases.gpus_text(key.gpus)}"
            for key, ratio in sorted(ratios.items(), key=lambda each: each[0].gpus)
            if key.configuration == configuration
        )
        wrapped = STRATEGIES[configuration.strategy].wraps
        yield f"{name}: step time over that of {wrapped}: {found}"


def _strategy_notes(strategies: Iterable[str]) -> Iterator[str]:
    for strategy in dict.fromkeys(strategies):
        demands = STRATEGIES.get(strategy)
        if demands is not None and demands.below_table:
            yield f"{strategy}: {demands.below_table}"


def _slow_windows(runs: Sequence[Run]) -> Iterator[str]:
    """The slow windows that the medians of valid runs bear, by the first run of each row."""
    found: dict[EntryKey, list[str]] = {}
    for run in runs:
        times_s = [window.time_s for window in run.windows]
        is_judged = run.is_valid and times_s and statistics.median(times_s) >= SHORTEST_JUDGED_S
        if is_judged and (said := slow_windows(times_s)):
            found.setdefault(run.key, []).append(f"run {run.index}: {said}")
    for key, its in found.items():
        more = f" (and {phrases.counted(len(its) - 1, 'run')} more)" if len(its) > 1 else ""
        yield f"{key.label}, {its[0]}{more}; the median is that of the others"


def _origin_of_results(results: Results, path: Path | None, now: datetime | None) -> Iterator[str]:
    """Which results these are: file, time, machine and software, and an empty line."""
    environment = results.environment
    if results.injections:
        yield phrases.injection_warning(results.injections)
    if path is not None:
        yield f"results   {visible(str(path))}"
    age = "" if now is None else phrases.age_text(results, now)
    yield f"measured  {results.created_at} by gpuscale {results.gpuscale_version}{age}"
    device = _DEVICES.get(environment.device, environment.device)
    yield f"machine   {environment.host}: {environment.hardware_label} (device: {device})"
    yield f"software  {phrases.software_text(environment)}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def _failures(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.failure is not None:
            # What is not steady says so itself.
            kind = "" if run.failure.kind == "unsteady" else f"{run.failure.kind}: "
            yield f"{run.key.label}, run {run.index}: {kind}{run.failure.message}"


def baseline_text(
    baseline: Baseline, today: date, *, columns: int | None = None, steps: int | None = None
) -> str:
    """The baseline as text, without a line break at its end; after its last day it says so.

    With a number of `steps` measured entries have the GPU-hours that they take. Lines keep to so
    many columns; None is where there is room for any line.
    """
    measured = side_of_baseline(baseline).entries
    note = expiry_note(baseline, today)
    blocks = (
        _origin_of_baseline(baseline),
        [_published_table(baseline.published, columns)] if baseline.published else (),
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


def _published_table(published: Sequence[PublishedFigure], columns: int | None) -> str:
    figures = {figure.key: figure for figure in published}
    headers = ["case", "gpus", "nodes", "batch/gpu", "runs", "published", "of", *_PAIR_HEADERS]
    rows = [
        [
            f"{figure.case}/{figure.strategy}",
            *map(str, (figure.gpus, figure.nodes, figure.batch_per_gpu, figure.runs)),
            *_published_text(figure),
            *_published_pair(figure, figures),
        ]
        for figure in published
    ]
    return table(headers, rows, columns, first=("published", "of"), left=headers)


def _measured_blocks(
    entries: Sequence[Entry], columns: int | None, steps: int | None
) -> Iterator[list[str]]:
    points = [entry.point for entry in entries]
    made = [f"{entry.point.valid_runs} ({len(entry.runs)})" for entry in entries]
    runs = "runs (allocations)"
    headers = ["case", "gpus", "batch/gpu", runs, "step time", *_PAIR_HEADERS]
    headers += _hours_header(steps)
    rows = _rows(points, headers, runs, made, steps)
    yield [table(headers, rows, columns, first=("step time", *_PAIR_HEADERS), left=headers)]
    configurations = phrases.configurations_text(point.configuration for point in points)
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
    time = UNKNOWN if figure.mean_time_s is None else format_seconds(figure.mean_time_s)
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
        cells = {**_cells(point), "measured": _runs_text(point.valid_runs, len(entry.runs))}
        pair = _PAIR_HEADERS if point.key.gpus > 1 else ()
        return {name: cells[name] for name in ("step time", *pair, "measured", "batch/gpu")}
    values = {"figure": "{} ({})".format(*_published_text(entry))}
    if entry.gpus > 1:
        values |= zip(_PAIR_HEADERS, _published_pair(entry, figures), strict=True)
    return values | {"runs": str(entry.runs), "batch/gpu": str(entry.batch_per_gpu)}
