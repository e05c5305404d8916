"""A baseline file for the terminal: whose it is, where from, and its rows."""

from collections.abc import Iterator
from datetime import date

from gpuscale.compare.hardware import hardware_label
from gpuscale.compare.matching import side_of_baseline
from gpuscale.compare.published import published_speedup
from gpuscale.recording import entries_of
from gpuscale.records import Baseline, BaselineChange, Estimate
from gpuscale.report.configurations import configuration_text, set_apart
from gpuscale.report.entry_text import (
    counted_runs,
    published_text,
    step_time_text,
    timed_text,
)
from gpuscale.report.results_text import software_text
from gpuscale.report.stacking import stacked_table
from gpuscale.report.table import interval_text, time_text
from gpuscale.report.wrapping import fitted
from gpuscale.validity import expiry_note

_PAIR_HEADERS = ("speedup", "efficiency")


def baseline_text(baseline: Baseline, today: date, *, columns: int | None = None) -> str:
    """The baseline as text, without a line break at its end.

    Args:
        baseline: What to show.
        today: By which an expired baseline says that it is.
        columns: Of the terminal; None where there is room for any line.
    """
    return "\n".join(_lines(baseline, today, columns))


def _lines(baseline: Baseline, today: date, columns: int | None) -> Iterator[str]:
    yield from fitted(_provenance(baseline), columns)
    tables = [_published_table(baseline, columns), _measured_table(baseline, columns)]
    for table in list(filter(None, tables)) or ["no entry"]:
        yield ""
        yield table
    if baseline.history:
        yield ""
        for change in baseline.history:
            yield from fitted(_change_lines(change), columns)
    note = expiry_note(baseline, today)
    if note is not None:
        yield ""
        yield from fitted([f"note: {note}"], columns)


def _provenance(baseline: Baseline) -> Iterator[str]:
    yield f"baseline  {baseline.name}: {hardware_label(baseline.cluster, baseline.hardware)}"
    if baseline.source is not None:
        parts = [baseline.source.title, baseline.source.published, baseline.source.url]
        yield f"source    {', '.join(part for part in parts if part)}"
        if baseline.source.note:
            yield f"          {baseline.source.note}"
    if baseline.recorded_at is not None:
        version = f", with gpuscale {baseline.gpuscale_version}"
        yield (
            f"measured  latest session begun {baseline.recorded_at}"
            f"{version if baseline.gpuscale_version else ''}"
        )
    if baseline.recorded_by is not None:
        yield f"recorded  by {baseline.recorded_by}"
    if baseline.history:
        yield f"updated   {baseline.history[-1].at}, see below"
    if baseline.expires_on is not None:
        yield f"expires   {baseline.expires_on}"
    by_software: dict[str, list[str]] = {}
    for allocation, environment in baseline.environments.items():
        by_software.setdefault(software_text(environment), []).append(
            _allocation(allocation, environment.host)
        )
    for software, allocations in by_software.items():
        yield f"software  {software}"
        yield f"          in {', '.join(allocations)}"


def _allocation(allocation: str, host: str | None) -> str:
    # Without a scheduler an allocation is named by its host already.
    return allocation if host is None or host in allocation else f"{allocation} on {host}"


def _change_lines(change: BaselineChange) -> Iterator[str]:
    by = f" by {change.by}" if change.by else ""
    yield f"changed   {change.at}{by}: {change.reason}"
    for entry, runs in entries_of(change.replaced).items():
        counted = counted_runs(len(runs), len({run.allocation for run in runs}))
        yield f"          {entry.key.label} was {step_time_text(runs)} ({counted})"
    if change.added:
        yield f"          new: {', '.join(change.added)}"


def _published_table(baseline: Baseline, columns: int | None) -> str:
    figures = {figure.key: figure for figure in baseline.published}
    rows = [
        [
            f"{figure.case}/{figure.strategy}",
            str(figure.gpus),
            str(figure.nodes),
            str(figure.batch_per_gpu),
            str(figure.runs),
            published_text(figure),
            timed_text(figure),
            *_pair_cells(published_speedup(figure, figures), figure.gpus),
        ]
        for figure in baseline.published
    ]
    headers = ["case", "gpus", "nodes", "batch/gpu", "runs", "published", "of", *_PAIR_HEADERS]
    if not rows:
        return ""
    return stacked_table(headers, rows, columns, first=("published", "of"), left=headers)


def _measured_table(baseline: Baseline, columns: int | None) -> str:
    side = side_of_baseline(baseline)
    points = [(entry.point, len(entry.runs)) for entry in side.entries]
    names = set_apart([point.configuration for point, _ in points])
    rows = [
        [
            names[point.configuration],
            str(point.key.gpus),
            str(point.batch_per_gpu),
            f"{point.valid_runs} ({nights})",
            time_text(point.step_time_s),
            interval_text(point.speedup),
            interval_text(point.efficiency),
        ]
        for point, nights in points
    ]
    if not rows:
        return ""
    headers = ["case", "gpus", "batch/gpu", "runs (allocations)", "step time", *_PAIR_HEADERS]
    texts = dict.fromkeys(configuration_text(point.configuration) for point, _ in points)
    table = stacked_table(headers, rows, columns, first=("step time", *_PAIR_HEADERS), left=headers)
    note = fitted([f"{'; '.join(texts)}; intervals: 95%, over runs"], columns)
    return "\n".join([table, "", *note])


def _pair_cells(speedup: float | None, gpus: int) -> tuple[str, str]:
    known = None if speedup is None else Estimate(value=speedup)
    return interval_text(known), interval_text(known and known.scaled(1 / gpus))
