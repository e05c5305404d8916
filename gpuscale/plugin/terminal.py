"""Terminal output and exit code of a session, and its data for pytest-benchmark."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
from msgspec.structs import replace

from gpuscale import __version__
from gpuscale.base.errors import ExitCode
from gpuscale.base.host import GPU_KINDS
from gpuscale.base.text import SPELT_OUT
from gpuscale.judge.compare.notes import with_environment_changes
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.stopping import DecidedVerdict
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Comparison, Environment, HostLoad, Results, Run, RunRequest
from gpuscale.reports.comparison import view_of
from gpuscale.reports.comparison.text_markdown_junit import text
from gpuscale.reports.phrases import busy_text, counted, injection_warning, load_text
from gpuscale.reports.screen import Screen, can_redraw, columns_of, fitted, progress_text, redrawn
from gpuscale.reports.show import failures, scaling_lines
from gpuscale.store.results import ResultsFile


def own_stream() -> TextIO:
    """Duplicate standard output before pytest captures it; open /dev/null if that fails."""
    with suppress(OSError, ValueError):
        own = os.dup(sys.stdout.fileno())
        return os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=SPELT_OUT)
    return Path(os.devnull).open("w")


@contextmanager
def progress_line(stream: TextIO, launcher: Launcher, request: RunRequest) -> Iterator[None]:
    """If `stream` is a terminal, show the run's progress after the item's ID until the run ends."""
    columns = columns_of(stream)
    # pytest prints IDs relative to the folder in which it was started, so they may be shorter.
    item, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")
    used = (len(item) + 1) % columns
    # Columns left on the line, except the last one; 0 if the ID fills the line.
    room = columns - used - 1 if used else 0

    def drawn() -> str | None:
        directory = launcher.running
        stage = None if directory is None else directory.read_progress()
        if stage is None and request.command is not None:
            stage = "nothing printed yet", 0, 0
        return stage and progress_text(*stage, room)

    with redrawn(stream if can_redraw(stream) else None, drawn, behind=True):
        yield


def header_lines(
    environment: Environment,
    options: MeasureOptions,
    resumed: ResultsFile | None,
    load: HostLoad,
    *,
    is_command: bool = False,
) -> Iterator[str]:
    """Yield lines about the machine, and warnings; `load` is the host's load before the runs."""
    if options.injections:
        yield injection_warning(options.injections)
    machine = environment.hardware_label
    if kind := GPU_KINDS.get(environment.device):
        machine = f"{machine}, {kind.library}"
    else:
        why = "--device cpu" if options.device == "cpu" else "no GPU found"
        threads = f"{counted(options.threads_per_rank, 'thread')} a rank"
        if is_command:
            own = os.environ.get("OMP_NUM_THREADS", "1")
            threads = f"OMP_NUM_THREADS={own} unless the command sets it"
        machine = f"{why}, measuring CPU ranks over gloo, {threads}, on {machine}"
    yield f"gpuscale {__version__}: {machine} (device: {environment.device})"
    if load.is_busy:
        yield f"this host is busy, so intervals may be wide: {load_text(load)}"
    if resumed is not None:
        runs = counted(len(resumed.results.runs), "run")
        yield f"resuming {relative(resumed.path)}: {runs} so far"
        if resumed.is_cut_short:
            yield "its last line is cut short (was the job killed?): the first new run replaces it"


def relative(path: Path) -> str:
    """Return a path as text, relative to the current folder if the path lies below that folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def summary_lines(
    results: Results, path: Path, *, new_runs: Sequence[Run], interrupted: bool
) -> Iterator[str]:
    """Yield lines: a table of all runs in the file, and notes, such as failures of `new_runs`."""
    if not results.runs:
        yield "nothing was measured: no results file was written"
        return
    if results.injections:
        yield injection_warning(results.injections)
    columns = Screen.of(sys.stdout).columns
    yield from scaling_lines(results, columns)
    notes = [*filter(None, [busy_text(results.runs)]), *failures(new_runs)]
    if not any(run.is_valid for run in results.runs):
        notes.append("no run gave a number: there is nothing to compare")
    if interrupted:
        notes.append(
            f"not all runs were made; go on as before, with --resume {shlex.quote(relative(path))} "
            "and without --results"
        )
    yield from fitted([*notes, f"results: {relative(path)}"], columns)


def diagnosed(rule: DecidedVerdict, results: Results) -> Comparison:
    """Return the comparison of all of a session's runs, with causes and environment changes."""
    judged = rule.verdict_after(results)
    comparison = diagnose(judged.sides, judged.comparison)
    return with_environment_changes(comparison, judged.sides)


def verdict_lines(
    rule: DecidedVerdict, results: Results, files: tuple[Path, Path], colour: bool, exit_code: int
) -> Iterator[str]:
    """Yield lines with the verdict and the exit code; `files` are those of baseline and results."""
    named = ([relative(path)] for path in files)
    comparison = diagnosed(rule, results).of_files(rule.baseline_kind, *named)
    screen = replace(Screen.of(sys.stdout), colour=colour)
    measured = rule.verdict_after(results).sides.after
    view = replace(view_of(comparison, measured), exit_code=exit_code, screen=screen)
    yield from text(view).splitlines()


def status_of_verdict(
    given: int, *, failed_tests: bool, failed_runs: bool, comparison: Comparison | None
) -> int:
    """Return the session's exit code, from its verdict and pytest's own exit code `given`.

    Return `given` if pytest stopped early, or if a test failed for a reason other than a failed
    run. If any run failed, a verdict of OK becomes INCONCLUSIVE.
    """
    codes = pytest.ExitCode
    if given not in (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED) or failed_tests:
        return given
    if comparison is None:
        return ExitCode.NOTHING_COMPARABLE
    if failed_runs and comparison.exit_code is ExitCode.OK:
        return ExitCode.INCONCLUSIVE
    return comparison.exit_code


def status_without_verdict(given: int, runs: Sequence[Run], *, needless: bool) -> int:
    """Return pytest's exit code `given`; if that is 0 but no run is valid, return a failure code.

    `needless` is True if no run was needed; then 0 is kept for a session without runs.
    """
    if given != pytest.ExitCode.OK or any(run.is_valid for run in runs):
        return given
    if runs:
        return pytest.ExitCode.TESTS_FAILED
    return given if needless else pytest.ExitCode.NO_TESTS_COLLECTED


class _WindowClock:
    """Timer for pytest-benchmark that advances only by the durations that the ranks measured."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


_CLOCK = pytest.StashKey[_WindowClock]()


def add_clock(item: pytest.Item, group: str) -> None:
    """Have pytest-benchmark time an item by the ranks' clock, and list it in the table `group`."""
    item.stash[_CLOCK] = clock = _WindowClock()
    item.add_marker(pytest.mark.benchmark(timer=clock, group=group))


def enter_run(item: pytest.Item, benchmark: Any, label: str, run: Run) -> None:
    """Pass a valid run to pytest-benchmark, with windows as rounds and steps as iterations."""
    steps, clock = run.steps_per_window, item.stash[_CLOCK]
    assert steps is not None
    benchmark.extra_info.update(
        device=run.configuration.device,
        gpus=run.gpus,
        run=run.index,
        batch_per_gpu=run.batch_per_gpu,
    )
    benchmark.params = {**(benchmark.params or {}), "scaling": label}
    step_times_s = iter([w.time_s / steps for w in run.windows for _ in range(steps)])

    def advance() -> None:
        # `pedantic` calls this once more than there are steps, to get the target's result.
        clock.now_s += next(step_times_s, 0.0)

    benchmark.pedantic(advance, rounds=len(run.windows), iterations=steps)
