"""A results file for the terminal: where from, its scaling table, what failed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from gpuscale.printable import visible
from gpuscale.records import Environment, Estimate, Results, Run
from gpuscale.report.phrases import (
    UNKNOWN,
    age_text,
    configurations_text,
    injection_warning,
    interval_text,
    set_apart,
    spread_text,
    time_text,
)
from gpuscale.report.reason_words import statement_text
from gpuscale.report.screen import fitted, table
from gpuscale.report.step_time import budget_lines, phase_lines
from gpuscale.scaling import PointKey, ScalingPoint, scaling_points, unit_error_note
from gpuscale.units import format_bytes, format_percent, significant

_DEVICES = {"cpu": "cpu, over gloo", "cuda": "cuda, over NCCL"}
_FIRST = ("step time", "speedup", "efficiency", "samples/s", "runs")
"""Columns that a narrow terminal shows first."""


def results_text(
    results: Results,
    *,
    phases: bool = False,
    path: Path | None = None,
    now: datetime | None = None,
    columns: int | None = None,
) -> str:
    """The scaling table of the results or else their phases, without a line break at its end.

    `path` is where they were read from. Of another day than `now` they say how old they are.
    Lines keep to so many columns; None is where there is room for any line.
    """
    lines = [*fitted(_provenance(results, path, now), columns)]
    if phases:
        lines += phase_lines(results.runs, columns)
    else:
        lines += scaling_lines(results.runs, columns) if results.runs else ["no run was recorded"]
        lines += fitted(_failures(results), columns)
    return "\n".join(lines)


def scaling_lines(runs: Sequence[Run], columns: int | None) -> Iterator[str]:
    """The scaling table of the runs, with its notes and where the lost efficiency went."""
    points = scaling_points(runs)
    yield from scaling_table(points, runs, columns=columns).splitlines()
    yield ""
    yield from fitted((*table_notes(points), *budget_lines(runs)), columns)


def scaling_table(
    points: Sequence[ScalingPoint], runs: Iterable[Run] = (), *, columns: int | None = None
) -> str:
    """A row for each point; intervals are 95%, and absent where a single run gives none.

    Of the runs that the points are made of, unsteady ones are told from failed ones.
    """
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    has_energy = any(point.samples_per_j is not None for point in points)
    headers = ["case", "gpus", "scaling", "batch/gpu", "runs", "step time", "samples/s"]
    headers += ["speedup", "efficiency", *(["samples/J"] if has_energy else [])]
    headers += ["peak host memory"] if on_cpu else ["GPU util", "peak memory"]
    names = set_apart([point.configuration for point in points])
    unsteady = Counter(
        PointKey.of(run) for run in runs if run.failure and run.failure.kind == "unsteady"
    )
    rows = []
    for point in points:
        told = {"case": names[point.configuration], "runs": _runs_text(point, unsteady)}
        cells = told | cells_of(point)
        rows.append([cells[header] for header in headers])
    return table(headers, rows, columns, first=_FIRST)


def cells_of(point: ScalingPoint) -> dict[str, str]:
    """The numbers of a point as tables show them, by the headers of their columns."""
    used, peak = point.gpu_utilization, point.peak_memory_bytes
    on_host = point.peak_host_memory_bytes
    return {
        "gpus": str(point.key.gpus),
        "scaling": point.configuration.scaling or UNKNOWN,
        "batch/gpu": str(point.batch_per_gpu),
        "step time": time_text(point.step_time_s),
        "samples/s": _rate_text(point.samples_per_s),
        "speedup": interval_text(point.speedup),
        "efficiency": interval_text(point.efficiency),
        "samples/J": _rate_text(point.samples_per_j),
        "GPU util": UNKNOWN if used is None else format_percent(used),
        "peak memory": UNKNOWN if peak is None else format_bytes(peak),
        "peak host memory": UNKNOWN if on_host is None else format_bytes(on_host),
    }


def _runs_text(point: ScalingPoint, unsteady: Mapping[PointKey, int]) -> str:
    """`3 (1 unsteady, 2 failed)`."""
    of_point = unsteady.get(point.point_key, 0)
    counts = {"unsteady": of_point, "failed": point.failed_runs - of_point}
    without = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{point.valid_runs} ({without})" if without else str(point.valid_runs)


def _rate_text(rate: Estimate | None) -> str:
    return UNKNOWN if rate is None else significant(rate.value) + spread_text(rate)


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """The lines below the table: how it was measured, and what cannot be right."""
    several = any(point.valid_runs > 1 for point in points)
    intervals = "intervals: 95%, over runs" if several else "a single run gives no interval"
    yield f"{configurations_text(point.configuration for point in points)}; {intervals}"
    spreads = (spread_text(point.step_time_s) for point in points if point.step_time_s is not None)
    wide = next((spread for spread in spreads if "×" in spread), None)
    if wide is not None:
        yield (
            f"{wide.strip()}: a wide interval, as factors of the value; measure more runs, "
            "or on a quieter machine"
        )
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield statement_text(note)


def _provenance(results: Results, path: Path | None, now: datetime | None) -> Iterator[str]:
    """Which results these are: file, time, machine and software, and an empty line."""
    environment = results.environment
    if results.injections:
        yield injection_warning(results.injections)
    if path is not None:
        yield f"results   {visible(str(path))}"
    age = "" if now is None else age_text(results, now)
    yield (
        f"measured  {results.created_at} by gpuscale {results.gpuscale_version}"
        f"{f', {age}' if age else ''}"
    )
    device = _DEVICES.get(environment.device, environment.device)
    yield f"machine   {environment.host}: {environment.hardware_label} (device: {device})"
    yield f"software  {software_text(environment)}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def software_text(environment: Environment) -> str:
    """The versions that a measurement depends on: `torch 2.15.0, CUDA 13.2, …`."""
    versions = {
        "torch": environment.torch_version,
        "CUDA": environment.cuda_version if environment.device == "cuda" else None,
        "NCCL": environment.nccl_version,
        "driver": environment.driver_version,
        "Python": environment.python_version,
        "cases": environment.cases_revision,
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _failures(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.failure is not None:
            # What is not steady says so itself.
            kind = "" if run.failure.kind == "unsteady" else f"{run.failure.kind}: "
            yield f"{run.key.label}, run {run.index}: {kind}{run.failure.message}"
