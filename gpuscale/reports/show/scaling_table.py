"""The scaling table of results, and the notes below it."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from gpuscale.analysis.scaling import (
    scaling_points,
    step_time_ratios,
    unchecked_training_note,
    unit_error_note,
)
from gpuscale.analysis.statistics.steadiness import SHORTEST_JUDGED_S, slow_windows
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.units import format_seconds
from gpuscale.records import EntryKey, PointKey, Results, Run, ScalingPoint
from gpuscale.records.environment import gpu_places
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, level_columns, text_table
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.screen import fitted, width_of
from gpuscale.reports.show import columns_with
from gpuscale.reports.show.step_time import budget_lines

_FIRST = ("value", "step time", "speedup", "efficiency", "samples/s", "runs")
"""Columns that come first on a narrow terminal."""
_IMPLIED = ("samples/s", "efficiency")
"""Columns shown without intervals on a narrow terminal, since other columns imply them."""
_SHARED = {"scaling": "{} scaling", "batch/GPU": "batch {} on each GPU"}
"""Columns that a note replaces if all rows have the same value, with the note's template."""
_SAME_STEP_TIME = math.log(1.25)
"""Largest log ratio at which a reported and a measured step time are considered equal."""
PAIR_HEADERS = ("speedup", "efficiency")


def scaling_lines(results: Results, columns: int, steps: int | None = None) -> Iterator[str]:
    """Yield the scaling table of the results, its notes and the efficiency budget."""
    runs = results.runs
    points = scaling_points(runs)
    yield from scaling_table(points, runs, columns=columns, steps=steps).splitlines()
    yield ""
    lines = [
        *table_notes(points),
        *_slow_windows(runs),
        *_other_step_times(runs),
        *_printed_metrics(runs),
        *_unused_batch_sizes(runs),
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
    """Return the table of measured points as text."""
    rows = scaling_cells(points, runs, steps)
    whole = text_table(rows)
    if columns is None or max(map(width_of, whole.splitlines())) <= columns:
        return whole
    first = [name for name in _FIRST if name in rows[0]]
    narrow = [
        {name: Cell(cell.text) if name in _IMPLIED else cell for name, cell in row.items()}
        for row in rows
    ]
    return text_table(narrow, columns, first=first)


def scaling_cells(
    points: Sequence[ScalingPoint],
    runs: Iterable[Run] = (),
    steps: int | None = None,
    *,
    with_epoch: bool = False,
) -> list[dict[str, Cell]]:
    """Return the table of measured points, with the cells of each row keyed by header.

    Intervals are 95 %; a single run has none. `runs` are the runs behind the points; unsteady runs
    among them are counted separately from other failed runs.
    """
    levels = level_columns(point.configuration for point in points)
    headers = ["case", "GPUs", "scaling", "batch/GPU", "runs", *levels]
    if with_epoch or any(point.configuration.batch is not None for point in points):
        headers.append("epoch")
    headers += PAIR_HEADERS
    headers += ["GPU-hours"] if steps else []
    if any(point.samples_per_j is not None for point in points):
        headers.append("samples/J")
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    headers += ["peak RAM"] if on_cpu else ["GPU util", "peak memory"]
    unsteady = Counter(
        PointKey.of(run) for run in runs if run.failure and run.failure.kind == "unsteady"
    )
    made = []
    for point in points:
        of_point = unsteady[point.point_key]
        counts = {"unsteady": of_point, "failed": point.failed_runs - of_point}
        without = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        made.append({"runs": Cell(str(point.valid_runs), without and f"({without})")})
    rows = cells_under(headers, points, made, steps)
    # The last columns are counters; runs of commands or without telemetry have none.
    counters = {*headers[-2:]} - {*PAIR_HEADERS}
    unknown = {name for name in counters if all(row[name].text == UNKNOWN for row in rows)}
    left_out = {*_shared_texts(points), *unknown}
    return [{name: cell for name, cell in row.items() if name not in left_out} for row in rows]


def _shared_texts(points: Sequence[ScalingPoint]) -> dict[str, str]:
    """Return the texts of `_SHARED` columns in which all points agree, keyed by header."""
    rows = cells_under([*_SHARED], points)
    texts = {name: {row[name].text for row in rows} for name in _SHARED}
    return {name: values.pop() for name, values in texts.items() if len(values) == 1}


def cells_under(
    headers: Sequence[str],
    points: Sequence[ScalingPoint],
    further: Sequence[Mapping[str, Cell]] = (),
    steps: int | None = None,
) -> list[dict[str, Cell]]:
    """Return the cells of each point, keyed by header; cells in `further` take precedence."""
    names = phrases.set_apart([point.configuration for point in points])
    columns = columns_with(steps)
    rows = []
    for point, others in zip(points, further or [{}] * len(points), strict=True):
        cells = {column.header: column.cell(point) for column in columns}
        scaling = Cell(point.configuration.scaling or UNKNOWN)
        cells |= {"case": Cell(names[point.configuration]), "scaling": scaling, **others}
        rows.append({header: cells[header] for header in headers})
    return rows


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """Yield the notes below the table: how the points were measured, and which are implausible."""
    most = max((point.valid_runs for point in points), default=0)
    intervals = ("", "a single run gives no interval", "intervals: 95 %, over runs")[min(most, 2)]
    configurations = phrases.configurations_text(point.configuration for point in points)
    alike = _shared_texts(points).items()
    shared = [_SHARED[name].format(text) for name, text in alike if text != UNKNOWN]
    yield "; ".join(filter(None, (configurations, *shared, intervals)))
    yield from wide_interval_note(points)
    if note := unchecked_training_note(point.configuration for point in points):
        yield statement_text(note)
    for strategy in dict.fromkeys(p.configuration.strategy for p in points if p.key.gpus > 1):
        demands = STRATEGIES.get(strategy)
        if demands is not None and demands.below_table:
            yield f"{strategy}: {demands.below_table}"
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield statement_text(note)


def wide_interval_note(points: Iterable[ScalingPoint]) -> Iterator[str]:
    """Explain the notation of wide intervals, `×[0.59, 1.7]`, if a step time has one."""
    times_s = (point.step_time_s for point in points)
    wide = (time_s for time_s in times_s if time_s is not None and phrases.is_wide(time_s))
    for time_s in islice(wide, 1):
        yield (
            f"{phrases.spread_text(time_s)}: a wide interval, as factors of the value; measure "
            "more runs, or on a quieter machine"
        )


def _ratio_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield each strategy's step time relative to that of the strategy it wraps, if measured."""
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


def _printed_metrics(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a note on commands whose printed values are used: their warm-up is unknown."""
    used = (run.configuration for run in runs)
    if named := sorted({each.case for each in used if each.metric and each.command}):
        yield (
            f"{', '.join(named)}: figures as the command prints them; its warm-up and steadiness "
            "are unknown"
        )


def _other_step_times(runs: Sequence[Run]) -> Iterator[str]:
    """For each row, yield a line on the first run whose reported and measured step times differ."""
    seen: set[EntryKey] = set()
    for run in runs:
        if run.key in seen or run.reported_step_s is None or not run.is_valid:
            continue
        if abs(math.log(run.reported_step_s / run.step_time_s)) > _SAME_STEP_TIME:
            seen.add(run.key)
            reported, measured = map(format_seconds, (run.reported_step_s, run.step_time_s))
            yield (
                f"{run.key.label}: its lines report {reported} a step themselves, and {measured} "
                "was measured; see whether --batch and the counter of steps mean what was timed "
                "(docs/commands.md)"
            )


def _unused_batch_sizes(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a note on each command that does not receive the batch size given to gpuscale."""
    first = {run.configuration: run for run in reversed(runs) if run.is_valid}
    for configuration, run in reversed(first.items()):
        words = configuration.command
        # If the kind of scaling is unset, the command reported the batch itself.
        if words is None or configuration.scaling is None or "batch}" in words:
            continue
        yield (
            f"{run.key.label}: samples/s are those of a batch of {run.batch_per_gpu} on each GPU, "
            "as given; the command has no {batch}, so see that it trains on as many"
        )


def _slow_windows(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each row with slow windows in valid runs, which medians ignore."""
    found: dict[EntryKey, list[str]] = {}
    for run in runs:
        times_s = [window.time_s for window in run.windows]
        is_judged = run.is_valid and times_s and statistics.median(times_s) >= SHORTEST_JUDGED_S
        if is_judged and (said := slow_windows(times_s)):
            found.setdefault(run.key, []).append(f"run {run.index}: {said}")
    for key, texts in found.items():
        more = f" (and {phrases.counted(len(texts) - 1, 'run')} more)" if len(texts) > 1 else ""
        yield f"{key.label}, {texts[0]}{more}; the median is that of the others"


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each failed run."""
    for run in runs:
        if run.failure is not None:
            # The message of an unsteady run names its kind already.
            kind = "" if run.failure.kind == "unsteady" else f"{run.failure.kind}: "
            yield f"{run.key.label}, run {run.index}: {kind}{run.failure.message}"
