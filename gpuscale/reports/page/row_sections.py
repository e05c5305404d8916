"""Sections of the page on its rows, and on the machines of the baseline and the results."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpuscale.analysis.scaling import scaling_points
from gpuscale.base.units import format_bytes
from gpuscale.judge.compare.hardware import hardware_label
from gpuscale.records import Environment, Results, Run, Verdict
from gpuscale.records.environment_diff import ENVIRONMENT_FIELDS, listed
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Row, losses_found
from gpuscale.reports.page import (
    Block,
    Item,
    Section,
    Subject,
    Table,
    readable,
    tone_of,
    without_unknown,
)
from gpuscale.reports.phrases import UNKNOWN, known_text
from gpuscale.reports.show.scaling_table import failures, scaling_cells, table_notes


def causes(subject: Subject) -> Section | None:
    """Return the section that explains the verdicts, the worst first."""
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
    """Return the section with all rows and their absolute numbers."""
    if subject.view is not None and subject.view.rows:
        return _compared(subject.view)
    return _measured(subject.runs) if subject.runs else None


def place_text(results: Results) -> str:
    """Say where and when results were measured: `node017, 4× V100, 2026-11-20 02:10, job 4711`."""
    where, began = results.environment, datetime.fromisoformat(results.created_at)
    job = f"job {where.job_id}" if where.job_id else ""
    ranks = "; CPU ranks stand for GPUs" if where.device == "cpu" else ""
    facts = where.host, where.hardware_label, f"{began:%Y-%m-%d %H:%M}", job
    return f"{', '.join(filter(None, facts))}{ranks}"


def measured_headline(subject: Subject) -> Sequence[tuple[str, str]]:
    """Return the headline of a page without a verdict: speedups and software."""
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


_DIFFER_ANYWAY = frozenset({"machine", "measured", "job"})
"""Facts whose differences between the sides are not highlighted; GPUs are compared separately."""


def machines(subject: Subject) -> Section:
    """Return the section on the machines of the results and, if given, of the baseline."""
    here = [result.environment for result in subject.results]
    begun = [result.created_at for result in subject.results]
    jobs = [
        r.allocation or result.environment.job_id for result in subject.results for r in result.runs
    ]
    sides = {"now": _facts(here[0].hardware_label, begun, jobs, here)}
    if (before := subject.baseline) is not None:
        machine = hardware_label(before.cluster, before.hardware)
        begun = [before.recorded_at] if before.recorded_at else []
        names, there = [*before.environments], [*before.environments.values()]
        sides = {f"baseline {before.name}": _facts(machine, begun, names, there), **sides}
    rows = []
    for name in sides["now"]:
        known = [side[name] or UNKNOWN for side in sides.values()]
        if set(known) != {UNKNOWN}:
            # An unknown fact is not a difference.
            differ = len({*known} - {UNKNOWN}) > 1 and name not in _DIFFER_ANYWAY
            row = {"": Cell(name, "differs" if differ else "")}
            tone: Tone = "doubt" if differ else ""
            for side, text in zip(sides, known, strict=True):
                row[side] = Cell(text, tone=tone)
            rows.append(row)
    table = Table(
        caption="When, where and with what it was measured",
        rows=rows,
        words=frozenset(("", *sides)),
    )
    return Section(title="Machines", tables=[table, *_devices(here)])


def _facts(
    machine: str,
    begun: Sequence[str],
    jobs: Sequence[str | None],
    environments: Sequence[Environment],
) -> dict[str, str]:
    """Return where, when and with what one side was measured; unknown facts are empty."""
    variables = {"=".join(pair) for each in environments for pair in each.variables.items()}
    values: dict[str, Iterable[object]] = {
        "machine": [machine],
        "devices": [environment.hardware_label for environment in environments],
        "measured": [f"{datetime.fromisoformat(each):%Y-%m-%d %H:%M %Z}" for each in begun],
        "job": jobs,
        "host": [environment.host for environment in environments],
        **{f.words: map(f.value, environments) for f in ENVIRONMENT_FIELDS if f.words is not None},
        "launcher": [environment.launcher for environment in environments],
        "variables": [", ".join(sorted(variables))],
    }
    return {
        name: listed([*dict.fromkeys(str(each) for each in facts if each is not None)])
        for name, facts in values.items()
    }


def _devices(environments: Sequence[Environment]) -> list[Table]:
    """Return a table of the GPUs with model, UUID and address; no table if there are no GPUs."""
    rows: list[dict[str, Cell]] = []
    for host, gpu in (each for here in environments for each in here.placed_gpus):
        number = gpu.index if gpu.smi_index is None else gpu.smi_index
        texts = {
            "GPU": f"{host or UNKNOWN} GPU {number}",
            "model": gpu.name,
            "UUID": gpu.uuid or UNKNOWN,
            "PCI address": gpu.pci_address or UNKNOWN,
            "memory": known_text(gpu.memory_bytes, format_bytes),
            "power limit": known_text(gpu.power_limit_w, "{:.0f} W".format),
        }
        row = {header: Cell(text) for header, text in texts.items()}
        rows += [row] if row not in rows else []
    if not rows:
        return []
    words = frozenset(("GPU", "model", "UUID", "PCI address"))
    return [Table(caption="GPUs that were used", rows=without_unknown(rows), words=words)]
