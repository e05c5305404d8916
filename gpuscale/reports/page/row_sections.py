"""The rows of a page: judged beside the baseline, or as they were measured."""

from collections.abc import Sequence
from datetime import datetime

from gpuscale.analysis.scaling import scaling_points
from gpuscale.records import Results, Run, Verdict
from gpuscale.records.environment_diff import listed
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell
from gpuscale.reports.comparison.rows import Row, losses_found
from gpuscale.reports.comparison.view import View
from gpuscale.reports.page.content import (
    Block,
    Item,
    Section,
    Subject,
    Table,
    readable,
    tone_of,
    without_unknown,
)
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.show.scaling_table import failures, scaling_cells, table_notes


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


def _compared_row(row: Row) -> dict[str, Cell]:
    numbers = {
        name: Cell(pair.now, "" if pair.then == UNKNOWN else f"was {pair.then}")
        for name, pair in row.numbers.items()
    }
    return {
        "case": Cell(row.name),
        "GPUs": Cell(str(row.entry.key.gpus)),
        "verdict": Cell(row.verdict, tone=tone_of(row.entry.verdict)),
        **numbers,
        "change": Cell(row.moved.text or UNKNOWN, readable(row.moved.below)),
        "because": Cell(readable(row.short_reason)),
    }


def _measured(runs: Sequence[Run]) -> Section:
    points = scaling_points(runs)
    table = Table(
        caption="Means over runs, and in small type their 95 % intervals",
        rows=without_unknown(scaling_cells(points, runs, with_epoch=True)),
    )
    return Section(title="Rows", tables=[table], notes=[*table_notes(points), *failures(runs)])
