"""The rows of a page: judged beside the baseline, or as they were measured."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpuscale.analysis.scaling import scaling_points
from gpuscale.base.units import format_bytes, format_percent, format_seconds, significant
from gpuscale.records import Estimate, Results, Run, ScalingPoint, Verdict
from gpuscale.records.environment_diff import listed
from gpuscale.reports import phrases
from gpuscale.reports.comparison.rows import Row, losses_found
from gpuscale.reports.comparison.view import View
from gpuscale.reports.page.content import (
    Block,
    Cell,
    Item,
    Section,
    Subject,
    Table,
    readable,
    tone_of,
    without_unknown,
)
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.show.scaling_table import failures, table_notes


def causes(subject: Subject) -> Section | None:
    """Why the rows are judged as they are, each explanation once, the worst first."""
    view = subject.view
    if view is None:
        return None
    blocks = [
        Block(
            title=found.subject,
            text=found.reason,
            items=[
                *map(Item, found.lost_metrics),
                *(Item(cause.line, cause.facts, cause.next_step) for cause in found.causes),
            ],
            tone=tone_of(found.rows[0].entry.verdict),
        )
        for found in view.explanations
        if found.rows[0].entry.verdict is not Verdict.CONSISTENT
    ]
    return Section(title="Why", blocks=blocks, notes=view.notes) if blocks or view.notes else None


def rows(subject: Subject) -> Section | None:
    """Every row with its absolute numbers."""
    if subject.view is not None and subject.view.rows:
        return _compared(subject.view)
    return _measured(subject.runs) if subject.runs else None


def place_text(results: Results) -> str:
    """`node017, 4× V100, 2026-11-20 02:10, job 4711`: where and when they were measured."""
    where, began = results.environment, datetime.fromisoformat(results.created_at)
    job = f", job {where.job_id}" if where.job_id else ""
    ranks = "; CPU ranks stand for GPUs" if where.device == "cpu" else ""
    host = where.host or "unknown host"
    return f"{host}, {where.hardware_label}, {began:%Y-%m-%d %H:%M}{job}{ranks}"


def measured_headline(subject: Subject) -> Sequence[tuple[str, str]]:
    """What stands first on a page without a verdict: the speedups, and with which software."""
    points = scaling_points(subject.runs)
    names = phrases.set_apart([point.configuration for point in points])
    widest = {point.configuration: point for point in points if point.speedup is not None}
    speedups = [
        f"{names[point.configuration]} {phrases.interval_text(point.speedup)} on {point.key.gpus}"
        for point in widest.values()
        if point.key.gpus > 1
    ]
    facts = (
        ("speedup", f"{listed(speedups)} GPUs" if speedups else ""),
        ("software", phrases.software_text(subject.results[0].environment)),
    )
    rows = phrases.counted(len(points), "row")
    return (
        ("MEASURED", f"{rows}; no baseline was given, so nothing is judged"),
        *(f for f in facts if f[1]),
    )


def _compared(view: View) -> Section:
    table = Table(
        caption="Now, and in small type the baseline; what got worse comes first",
        headers=("case", "GPUs", "verdict", "step time", "samples/s", "E", "change", "because"),
        rows=[_compared_row(row) for row in view.ranked],
        words=frozenset(("verdict", "because")),
    )
    passed = [row for row in view.ranked if row.entry.verdict is Verdict.OK]
    legend = (
        "E: efficiency, the speedup over the number of GPUs; 1 is ideal",
        "change: of what the verdict rests on, with its 95 % interval",
        losses_found(passed),
    )
    return Section(title="Rows", tables=[table], notes=list(filter(None, legend)))


def _compared_row(row: Row) -> Sequence[Cell]:
    entry, before, now = row.entry, row.entry.baseline, row.entry.current
    change, _, interval = row.moved.partition(" [")
    efficiency = Cell(UNKNOWN)
    if entry.key.gpus > 1:
        efficiency = _then_now(before.efficiency, now.efficiency, "{:.2f}".format)
    return (
        Cell(row.name),
        Cell(str(entry.key.gpus)),
        Cell(row.verdict, tone=tone_of(entry.verdict)),
        _then_now(before.step_time_s, now.step_time_s, format_seconds),
        _then_now(before.samples_per_s, now.samples_per_s, significant),
        efficiency,
        Cell(change or UNKNOWN, readable(interval and f"[{interval}")),
        Cell(readable(row.short_reason)),
    )


def _then_now(before: Estimate | None, now: Estimate | None, form: Callable[[float], str]) -> Cell:
    then, this = (UNKNOWN if each is None else form(each.value) for each in (before, now))
    return Cell(this, "" if before is None else f"was {then}")


def _measured(runs: Sequence[Run]) -> Section:
    points = scaling_points(runs)
    names = phrases.set_apart([point.configuration for point in points])
    rows = [{"case": Cell(names[each.configuration]), **_measured_cells(each)} for each in points]
    table = Table(
        caption="Means over runs, and in small type their 95 % intervals",
        headers=[*rows[0]],
        rows=[[*row.values()] for row in rows],
    )
    notes = [*table_notes(points), *failures(runs)]
    return Section(title="Rows", tables=[without_unknown(table)], notes=notes)


def _measured_cells(point: ScalingPoint) -> dict[str, Cell]:
    failed = f"{point.failed_runs} without a result" if point.failed_runs else ""
    peak_bytes = point.peak_memory_bytes or point.peak_host_memory_bytes
    return {
        "GPUs": Cell(str(point.key.gpus)),
        "batch/GPU": Cell(str(point.batch_per_gpu or UNKNOWN)),
        "runs": Cell(str(point.valid_runs), failed),
        "step time": _estimated(point.step_time_s, format_seconds),
        "samples/s": _estimated(point.samples_per_s, significant),
        "epoch": Cell(phrases.known_text(point.epoch_s, format_seconds)),
        "speedup": _estimated(point.speedup, "{:.2f}".format),
        "E": _estimated(point.efficiency, "{:.2f}".format),
        "GPU use": Cell(phrases.known_text(point.gpu_utilization, format_percent)),
        "peak memory": Cell(phrases.known_text(peak_bytes, format_bytes)),
    }


def _estimated(estimate: Estimate | None, form: Callable[[float], str]) -> Cell:
    if estimate is None:
        return Cell(UNKNOWN)
    return Cell(form(estimate.value), phrases.bounds_text(estimate, form))
