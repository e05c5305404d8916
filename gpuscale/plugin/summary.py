"""What an invocation says of itself: its first line, a word per run, and the closing table."""

from collections.abc import Iterator
from pathlib import Path

from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.recorder import Recorder
from gpuscale.records import Environment, Run
from gpuscale.report.table import scaling_table, table_notes
from gpuscale.scaling import scaling_points
from gpuscale.units import format_seconds


def header_line(version: str, environment: Environment, options: MeasureOptions) -> str:
    """What is measured on."""
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
    return f"{format_seconds(run.median_step_time_s)}/step"


def summary_lines(recorder: Recorder) -> Iterator[str]:
    """The closing table and where its numbers are kept."""
    if not recorder.runs or recorder.path is None:
        yield "nothing was measured: no results file was written"
        return
    points = scaling_points(recorder.runs)
    yield from scaling_table(points).splitlines()
    yield ""
    yield from table_notes(points)
    failed = sum(point.failed_runs for point in points)
    if failed:
        yield f"{failed} run{'s' if failed > 1 else ''} failed and left no number; see above"
    yield f"results: {_relative(recorder.path)}"


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
