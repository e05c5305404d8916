"""The rows of a page: judged beside the baseline, or as they were measured."""

from collections.abc import Iterator, Sequence

from gpuscale.page.content import Block, Cell, Item, Section, Subject, Table, cells, tone_of
from gpuscale.records import Configuration, Run, Verdict
from gpuscale.reports import phrases
from gpuscale.reports.cause_words import evidence, whole_line
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.tables import table_notes
from gpuscale.reports.view import DETECTABLE, Row, View, explanations
from gpuscale.scaling import ScalingPoint, scaling_points
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

_MEASURED = (
    *("GPUs", "batch/GPU", "runs", "step time", "samples/s", "epoch", "speedup", "E", "GPU use"),
    "peak memory",
)
_Points = dict[tuple[Configuration, int], ScalingPoint]


def causes(subject: Subject) -> Section | None:
    """Why the rows are judged as they are, each explanation once, the worst first."""
    view = subject.view
    if view is None:
        return None
    blocks = [
        Block(
            title=found.subject,
            text=found.reason,
            items=[item for row in found.rows for item in _details(row)],
            tone=tone_of(found.rows[0].entry.verdict),
        )
        for found in explanations(view.ranked)
        if found.rows[0].entry.verdict is not Verdict.CONSISTENT
    ]
    if not blocks and not view.all_notes:
        return None
    return Section(title="Why", blocks=blocks, notes=view.all_notes)


def _details(row: Row) -> Iterator[Item]:
    yield from (Item(metric) for metric in row.lost_metrics)
    for cause, step in zip(row.entry.causes, row.next_steps, strict=True):
        yield Item(whole_line(cause), evidence(cause), f"next: {step}" if step else "")


def rows(subject: Subject) -> Section | None:
    """Every row with its absolute numbers."""
    if subject.view is not None and subject.view.rows:
        return _compared(subject, subject.view)
    return _measured(subject.runs) if subject.runs else None


def _compared(subject: Subject, view: View) -> Section:
    before = _by_row(() if subject.baseline is None else subject.baseline.runs)
    now = _by_row(subject.runs)
    headers = ("case", "GPUs", "verdict", "step time", "samples/s", "change", "E", "because")
    table = Table(
        caption="Rows, the worst first: now, and in small type the baseline",
        headers=headers,
        rows=[_compared_row(row, before, now) for row in view.ranked],
        words=frozenset(("verdict", "because")),
    )
    legend = (
        "change: of throughput, or of what the verdict names, with its 95 % interval",
        "E: efficiency, the speedup over the number of GPUs; 1 is ideal",
        f"finds: {DETECTABLE}",
    )
    return Section(title="Rows", tables=[table], notes=legend)


def _compared_row(row: Row, before: _Points, now: _Points) -> Sequence[Cell]:
    entry = row.entry
    place = (entry.configuration, entry.key.gpus) if entry.configuration else None
    then, measured = (its.get(place) if place else None for its in (before, now))
    efficiency_then, efficiency_now = (
        UNKNOWN if pair.efficiency is None else f"{pair.efficiency.value:.2f}"
        for pair in (entry.baseline, entry.current)
    )
    change = UNKNOWN if row.change is None else phrases.percent_text(row.change.value)
    return (
        Cell(row.name),
        Cell(str(entry.key.gpus)),
        Cell(row.verdict, tone=tone_of(entry.verdict)),
        Cell(_step_time(measured), _was(_step_time(then))),
        Cell(_throughput(measured), _was(_throughput(then))),
        Cell(change, row.interval if row.change else ""),
        Cell(efficiency_now, _was(efficiency_then)),
        Cell(row.short_reason),
    )


def _by_row(runs: Sequence[Run]) -> _Points:
    return {(point.configuration, point.key.gpus): point for point in scaling_points(runs)}


def _step_time(point: ScalingPoint | None) -> str:
    return phrases.with_spread(point.step_time_s if point else None, format_seconds)


def _throughput(point: ScalingPoint | None) -> str:
    samples_per_s = point.samples_per_s if point else None
    return UNKNOWN if samples_per_s is None else significant(samples_per_s.value)


def _was(text: str) -> str:
    return "" if text == UNKNOWN else f"was {text}"


def _measured(runs: Sequence[Run]) -> Section:
    points = scaling_points(runs)
    names = phrases.set_apart([point.configuration for point in points])
    table = Table(
        caption="Rows as they were measured",
        headers=("case", *_MEASURED),
        rows=[cells(names[point.configuration], *_measured_row(point)) for point in points],
    )
    return Section(title="Rows", tables=[table], notes=[*table_notes(points), *_failures(runs)])


def _measured_row(point: ScalingPoint) -> Iterator[str]:
    yield str(point.key.gpus)
    yield str(point.batch_per_gpu)
    yield f"{point.valid_runs} of {point.valid_runs + point.failed_runs}"
    yield _step_time(point)
    yield _throughput(point)
    yield UNKNOWN if point.epoch_s is None else format_seconds(point.epoch_s)
    yield phrases.interval_text(point.speedup)
    yield phrases.interval_text(point.efficiency)
    yield UNKNOWN if point.gpu_utilization is None else format_percent(point.gpu_utilization)
    peak = point.peak_memory_bytes or point.peak_host_memory_bytes
    yield UNKNOWN if peak is None else format_bytes(peak)


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if run.failure is not None:
            yield f"{run.key.label}, run {run.index}: {run.failure.kind}: {run.failure.message}"
