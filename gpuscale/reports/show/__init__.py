"""Content of `gpuscale show`: its columns in every format, and the scaling table as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from gpuscale.analysis.scaling import (
    published_points,
    scaling_points,
    unchecked_training_note,
    unit_error_note,
)
from gpuscale.base.grouping import by_key
from gpuscale.base.host import device_word
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.text import format_bytes, format_percent, format_seconds, significant
from gpuscale.records import Baseline, Estimate, PointKey, Results, Run, ScalingPoint
from gpuscale.records.environment import gpu_places
from gpuscale.records.environment_diff import listed
from gpuscale.reports import phrases
from gpuscale.reports.columns import (
    SCALING,
    Cell,
    Column,
    level_columns,
    named_on,
    odd_run_text,
    text_table,
)
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.screen import PLAIN_COLUMNS, fitted
from gpuscale.reports.show.step_parts import budget_lines

_HOUR_S = 3600


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A results or baseline file, and how to show it."""

    content: Results | Baseline
    path: Path
    steps: int | None = None
    """Number of training steps for which GPU-hours are shown; None for no GPU-hours."""
    phases: bool = False
    """True if the text shows the phases of a step instead of the scaling table."""
    columns: int = PLAIN_COLUMNS

    @property
    def injections(self) -> tuple[str, ...]:
        """Faults that were deliberately injected into the runs of these results."""
        return self.content.injections if isinstance(self.content, Results) else ()

    @property
    def points(self) -> Sequence[ScalingPoint]:
        """All scaling points: published ones first, then measured ones."""
        published = published_points(self.content) if isinstance(self.content, Baseline) else {}
        return (*published.values(), *scaling_points(self.content.runs))


def columns_with(steps: int | None) -> tuple[Column[ScalingPoint], ...]:
    """Return the columns for scaling points; GPU-hours are for `steps` steps (unknown if None)."""

    def gpu_hours(point: ScalingPoint) -> Estimate | None:
        if point.step_time_s is None or steps is None:
            return None
        return point.step_time_s.scaled(point.gpus * steps / _HOUR_S)

    return (
        Column("kind", "kind"),
        Column("gpus", "GPUs"),
        Column("nodes", "nodes"),
        Column("batch_per_gpu", "batch/GPU"),
        Column(
            "samples_per_step",
            value=lambda point: point.batch_per_gpu and point.gpus * point.batch_per_gpu,
        ),
        Column("runs", "runs", value=attrgetter("valid_runs")),
        Column(
            "failed_runs",
            value=lambda point: point.failed_runs if point.kind == "measured" else None,
        ),
        *SCALING,
        Column("gpu_hours", "GPU-hours", significant, "±", gpu_hours),
        Column("epoch_s"),
        Column("samples_per_j", "samples/J", significant, "±"),
        Column("gpu_utilization", "GPU util", format_percent),
        Column("peak_memory_bytes", "peak memory", format_bytes),
        Column("peak_host_memory_bytes", "peak RAM", format_bytes),
        Column("timed", value=lambda point: point.figure and point.figure.timed),
        Column("time_s", value=lambda point: point.figure and point.figure.mean_time_s),
        Column(
            "sample_shape",
            value=lambda point: point.sample_shape and "x".join(map(str, point.sample_shape)),
        ),
    )


_EPOCH: Column[ScalingPoint] = Column("epoch_time_s", "epoch", format_seconds, "±")
_FIRST = ("value", "step time", "speedup", "efficiency", "samples/s", "runs")
"""Columns that come first on a narrow terminal."""
PAIR_HEADERS = ("speedup", "efficiency")


def scaling_lines(results: Results, columns: int, steps: int | None = None) -> Iterator[str]:
    """Yield the scaling table, notes and the efficiency budget; GPU-hours are for `steps` steps."""
    runs = results.runs
    points = scaling_points(runs)
    yield from scaling_table(points, columns=columns, steps=steps).splitlines()
    yield ""
    lines = [*table_notes(points), *odd_runs(runs), *_notes_on_commands(runs), *budget_lines(runs)]
    places = gpu_places([results.environment]).items()
    named = (f"{uuid}: {at}" for uuid, at in places if any(uuid in line for line in lines))
    yield from fitted((*lines, *named), columns)


def scaling_table(
    points: Sequence[ScalingPoint],
    *,
    columns: int | None = None,
    steps: int | None = None,
    allocations: Sequence[int] = (),
) -> str:
    """Return the points as a text table, cut into several if wider than `columns` characters.

    GPU-hours are for `steps` steps. `allocations`: each point's number of allocations, to show.
    """
    rows = scaling_cells(points, steps)
    for row, count in zip(rows, allocations, strict=False):
        row["runs"] = Cell(row["runs"].text, f"({count})")
    return text_table(rows, columns, first=[name for name in _FIRST if name in rows[0]])


def scaling_cells(
    points: Sequence[ScalingPoint], steps: int | None = None, *, with_epoch: bool = False
) -> list[dict[str, Cell]]:
    """Return each measured point's cells, keyed by header; GPU-hours are for `steps` steps.

    Intervals have 95 % confidence; a single run has none. `with_epoch` forces a column `epoch`.
    """
    headers = ["case", "GPUs", *([] if _shared_batch(points) else ["batch/GPU"]), "runs"]
    headers += level_columns(point.configuration for point in points)
    if with_epoch or any(point.configuration.batch is not None for point in points):
        headers.append("epoch")
    # A single device, such as that of an imported figure, has no speedup.
    headers += PAIR_HEADERS if any(point.gpus > 1 for point in points) else ()
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    counters = ("peak RAM",) if on_cpu else ("GPU util", "peak memory")
    # Runs of commands or without telemetry have no counters.
    for column in columns_with(steps):
        if column.header in ("GPU-hours", "samples/J", *counters):
            is_known = any(column.value_in(point) is not None for point in points)
            headers += [column.header] if is_known else []
    of_all = (f"of {p.valid_runs + p.failed_runs}" if p.failed_runs else "" for p in points)
    runs = [{"runs": Cell(str(p.valid_runs), text)} for p, text in zip(points, of_all, strict=True)]
    return cells_under(headers, points, runs, steps)


def _shared_batch(points: Sequence[ScalingPoint]) -> str:
    """Return the batch size per GPU that all points share, `–` if unknown; empty if they differ."""
    texts = {phrases.known_text(point.batch_per_gpu, str) for point in points}
    return texts.pop() if len(texts) == 1 else ""


def cells_under(
    headers: Sequence[str],
    points: Sequence[ScalingPoint],
    further: Sequence[Mapping[str, Cell]] = (),
    steps: int | None = None,
) -> list[dict[str, Cell]]:
    """Return each point's cells under `headers`; cells in `further` replace computed ones.

    Headers say `CPU ranks` if all points were measured on them. GPU-hours are for `steps` steps.
    """
    names = phrases.set_apart([point.configuration for point in points])
    columns = columns_with(steps)
    rows = []
    for point, others in zip(points, further or [{}] * len(points), strict=True):
        cells = {column.header: column.cell(point) for column in columns}
        cells["case"] = Cell(names[point.configuration])
        cells |= {"epoch": _EPOCH.cell(point), **others}
        rows.append({header: cells[header] for header in headers})
    return named_on((point.configuration.device for point in points), rows)


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """Yield the notes below the table: how the points were measured, and which are implausible."""
    most = max((point.valid_runs for point in points if point.kind == "measured"), default=0)
    intervals = ("", "a single run gives no interval", "intervals: 95 %, over runs")[min(most, 2)]
    configurations = phrases.configurations_text(point.configuration for point in points)
    device = next((point.configuration.device for point in points), "")
    batch = _shared_batch(points)
    shared = "" if batch in ("", UNKNOWN) else f"batch {batch} on each {device_word(device)}"
    yield "; ".join(filter(None, (configurations, shared, intervals)))
    levels = (value for p in points for value in (p.step_time_s, p.value, p.speedup))
    if any(map(phrases.is_uncertain, levels)):
        yield f"{phrases.OPEN}: {phrases.UNCERTAIN}; measure more runs, or on a quieter machine"
    if note := unchecked_training_note(p.configuration for p in points if p.gpus > 1):
        yield statement_text(note)
    for strategy in dict.fromkeys(p.configuration.strategy for p in points if p.key.gpus > 1):
        if (demands := STRATEGIES.get(strategy)) is not None and demands.below_table:
            yield f"{strategy}: {demands.below_table}"
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield statement_text(note, device)


def _notes_on_commands(runs: Sequence[Run]) -> Iterator[str]:
    """Yield notes on commands that print the judged metric, or that may ignore the batch size."""
    used = (run.configuration for run in runs)
    if named := sorted({each.case for each in used if each.metric and each.command}):
        yield f"{', '.join(named)}: as the command prints it; warm-up and steadiness are unknown"
    names = {run.configuration: run.key.name for run in runs if run.is_valid}
    for configuration, name in names.items():
        words = configuration.command
        # If the kind of scaling is unset, the command reported the batch itself.
        if words is not None and configuration.scaling is not None and "batch}" not in words:
            yield f"{name}: the command has no {{batch}}, so check that it trains with that given"


def odd_runs(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a line for each row that has an outlier among its runs."""
    for row in by_key((PointKey.of(run), run) for run in runs).values():
        if text := odd_run_text(row):
            yield f"{row[0].label}: {text}"


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each distinct failure among the runs."""
    failed = ((run, run.failure) for run in runs if run.failure is not None)
    alike = by_key((failure.normalised_message, (run, failure)) for run, failure in failed)
    for (run, failure), *others in alike.values():
        rows = listed([*dict.fromkeys(r.label for r, _ in others if r.label != run.label)])
        more = f"; likewise {phrases.counted(len(others), 'more run')}" if others else ""
        more += f" ({rows})" if rows else ""
        yield f"{run.label}, run {run.index}: {failure.message}{more}"
