"""A results file for the terminal: where it was measured, and its scaling table."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gpuscale.printable import visible
from gpuscale.records import Environment, Results
from gpuscale.report.budget_text import budget_lines
from gpuscale.report.injection_text import injection_warning
from gpuscale.report.table import scaling_table, table_notes
from gpuscale.report.wrapping import fitted
from gpuscale.scaling import scaling_points

_DAY_S = 86400


def results_text(
    results: Results,
    *,
    path: Path | None = None,
    now: datetime | None = None,
    columns: int | None = None,
) -> str:
    """The results as text, without a line break at its end.

    Args:
        results: What to show.
        path: Where they were read from.
        now: By which results of another day say how old they are.
        columns: Of the terminal; None where there is room for any line.
    """
    return "\n".join(_lines(results, path, now, columns))


def provenance_lines(
    results: Results, path: Path | None = None, now: datetime | None = None
) -> Iterator[str]:
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
    yield f"machine   {environment.host}: {environment.hardware_label} ({_device(environment)})"
    yield f"software  {software_text(environment)}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def age_text(results: Results, now: datetime) -> str:
    """`3 days ago`, by the last of the runs; empty where that is less than a day."""
    begun_s = datetime.fromisoformat(results.created_at).timestamp()
    last_s = max([begun_s, *((run.started_at_s or 0) + (run.wall_s or 0) for run in results.runs)])
    days = (now.timestamp() - last_s) // _DAY_S
    return "" if days < 1 else f"{days:.0f} day{'' if days == 1 else 's'} ago"


def _lines(
    results: Results, path: Path | None, now: datetime | None, columns: int | None
) -> Iterator[str]:
    yield from fitted(provenance_lines(results, path, now), columns)
    if not results.runs:
        yield "no run was recorded"
        return
    points = scaling_points(results.runs)
    yield scaling_table(points, results.runs, columns=columns)
    yield ""
    yield from fitted(table_notes(points), columns)
    yield from fitted(budget_lines(results.runs), columns)
    yield from fitted(_failures(results), columns)


def _failures(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.failure is not None:
            # What is not steady says so itself.
            kind = "" if run.failure.kind == "unsteady" else f"{run.failure.kind}: "
            yield f"{run.key.label}, run {run.index}: {kind}{run.failure.message}"


def _device(environment: Environment) -> str:
    return "device: cpu, over gloo" if environment.device == "cpu" else "device: cuda, over NCCL"


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
