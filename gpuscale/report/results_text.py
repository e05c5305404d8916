"""A results file for the terminal: where it was measured, and its scaling table."""

from collections.abc import Iterator

from gpuscale.records import Environment, Results
from gpuscale.report.budget_text import budget_lines
from gpuscale.report.injection_text import injection_warning
from gpuscale.report.table import scaling_table, table_notes
from gpuscale.scaling import scaling_points


def results_text(results: Results) -> str:
    """The results as text, without a line break at its end."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    environment = results.environment
    if results.injections:
        yield injection_warning(results.injections)
    yield f"measured  {results.created_at} by gpuscale {results.gpuscale_version}"
    yield f"machine   {environment.host}: {environment.hardware_label} ({_device(environment)})"
    yield f"software  {software_text(environment)}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""
    if not results.runs:
        yield "no run was recorded"
        return
    points = scaling_points(results.runs)
    yield scaling_table(points)
    yield ""
    yield from table_notes(points)
    yield from budget_lines(results.runs)
    for run in results.runs:
        if run.failure is not None:
            yield f"{run.key.label}, run {run.index}: {run.failure.kind}: {run.failure.message}"


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
