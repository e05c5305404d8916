"""What an invocation says of itself: its first line, a word per run, and the closing table."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.recorder import Recorder
from gpuscale.plugin.stopping import StoppingRule, unsettled_points
from gpuscale.records import Environment, Run
from gpuscale.report.budget_text import budget_lines
from gpuscale.report.injection_text import injection_warning
from gpuscale.report.table import scaling_table, spread_text, table_notes
from gpuscale.report.wrapping import columns_of, fitted
from gpuscale.scaling import ScalingPoint, scaling_points
from gpuscale.store import ResumedResults
from gpuscale.units import format_seconds


def header_lines(
    version: str,
    environment: Environment,
    options: MeasureOptions,
    resumed: ResumedResults | None,
) -> Iterator[str]:
    """What is measured on, and what a reader must know before anything is."""
    if options.injections:
        yield injection_warning(options.injections)
    yield _machine_line(version, environment, options)
    if resumed is not None:
        yield from _resumed_lines(resumed, environment)


def _resumed_lines(resumed: ResumedResults, environment: Environment) -> Iterator[str]:
    runs = len(resumed.results.runs)
    yield f"resuming {_relative(resumed.path)}: {runs} run{'' if runs == 1 else 's'} so far"
    if resumed.copy is not None:
        yield (
            "its last line is cut short (was the job killed?): the first new run takes its "
            f"place, and the file as it is goes to {resumed.copy.name}"
        )
    then = resumed.results.environment
    if (then.host, then.job_id) != (environment.host, environment.job_id):
        before, now = (
            f"{place.host}, job {place.job_id}" if place.job_id else place.host
            for place in (then, environment)
        )
        count = "one allocation" if environment.job_id in (None, then.job_id) else "two allocations"
        yield f"begun on {before}, now on {now}: the runs of the two count as {count}"


def _machine_line(version: str, environment: Environment, options: MeasureOptions) -> str:
    if environment.device == "cuda":
        return f"gpuscale {version}: {environment.hardware_label}, NCCL (device: cuda)"
    why = "--device cpu" if options.device == "cpu" else "no GPU found"
    return (
        f"gpuscale {version}: {why}, measuring CPU ranks over gloo, "
        f"{options.threads_per_rank} thread{'s' if options.threads_per_rank > 1 else ''} a rank, "
        f"on {environment.hardware_label} (device: cpu)"
    )


def run_word(run: Run) -> str:
    """A run in a word: `41.2 ms/step`."""
    return f"{format_seconds(run.step_time_s)}/step"


def summary_lines(
    recorder: Recorder, options: MeasureOptions, *, interrupted: bool
) -> Iterator[str]:
    """The closing table and where its numbers are kept."""
    if not recorder.runs or recorder.path is None:
        yield "nothing was measured: no results file was written"
        return
    if recorder.injections:
        yield injection_warning(recorder.injections)
    points, columns = scaling_points(recorder.runs), columns_of(sys.stdout)
    yield from scaling_table(points, recorder.runs, columns=columns).splitlines()
    yield ""
    yield from fitted(table_notes(points), columns)
    yield from fitted(budget_lines(recorder.runs), columns)
    yield from fitted(_remarks(recorder, options, recorder.path, interrupted), columns)


def _remarks(
    recorder: Recorder, options: MeasureOptions, path: Path, interrupted: bool
) -> Iterator[str]:
    """What came to nothing, what is not known well enough, and how to go on."""
    new_runs = recorder.runs[len(recorder.earlier_runs) :]
    failures = [run.failure for run in new_runs if run.failure is not None]
    for run in new_runs:
        if run.failure is not None and run.failure.kind == "unsteady":
            yield f"{run.key.label}, run {run.index}, gives no number: {run.failure.message}"
    if not any(run.is_valid for run in recorder.runs):
        yield "no run gave a number: there is nothing to compare"
    failed = sum(failure.kind != "unsteady" for failure in failures)
    if failed:
        yield f"{failed} run{'s' if failed > 1 else ''} failed and left no number; see above"
    if options.stopping is not None:
        # Simulated: docs/design.md, "Stopping".
        yield "runs stopped when intervals were narrow: these cover the truth a little less often"
        unsettled = unsettled_points(recorder.runs, options.stopping, gpus=options.gpus)
        yield from (_unsettled_line(point, options.stopping) for point in unsettled)
    if interrupted:
        yield (
            "not all runs were made; go on with: pytest … --resume "
            f"{shlex.quote(_relative(path))} (all else as before, without --results)"
        )
    yield f"results: {_relative(path)}"


def _unsettled_line(point: ScalingPoint, rule: StoppingRule) -> str:
    widths = [
        f"{name}{spread_text(estimate)}"
        for name, estimate in (("T", point.step_time_s), ("S", point.speedup))
        if estimate is not None and estimate.has_interval
    ]
    found = f": {', '.join(widths)}" if widths else ""
    runs = f"{point.valid_runs} run{'' if point.valid_runs == 1 else 's'}"
    return (
        f"not settled to ±{rule.target * 100:g} %: {point.key.label} after {runs}{found}; "
        "go on with --resume and a larger maximum of --runs"
    )


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
