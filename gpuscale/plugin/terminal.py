"""Lines on the machine and on the progress of a session, and its data for pytest-benchmark."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from gpuscale import __version__
from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.printable import SPELT_OUT
from gpuscale.measure.evidence.node_meter import HostLoadMeter
from gpuscale.measure.launch import Launcher
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Environment, Run
from gpuscale.reports.phrases import counted, injection_warning, load_text
from gpuscale.reports.screen import can_redraw, columns_of, progress_text, redrawn
from gpuscale.store import ResumedResults


def own_stream() -> TextIO | None:
    """Open a stream to the terminal before pytest captures the output; None if there is none."""
    with suppress(OSError, ValueError):
        if can_redraw(sys.stdout):
            own = os.dup(sys.stdout.fileno())
            return os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=SPELT_OUT)
    return None


def progress_line(
    stream: TextIO | None, launcher: Launcher, left: Callable[[float], str]
) -> AbstractContextManager[None]:
    """Show the progress of a run after the item's ID, and erase it when the run has ended.

    `left` is called with the seconds since the run began, and returns the session's remaining time
    as text.
    """
    columns = 0 if stream is None else columns_of(stream)
    # pytest prints the id relative to the folder it was started in, which may be shorter.
    item, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")
    used = (len(item) + 1) % columns if columns else 0
    # Without the last column; 0 if the id fills its line.
    room = columns - used - 1 if used else 0
    began_s = time.monotonic()

    def drawn() -> str | None:
        stage = launcher.progress()
        if stage is None:
            return None
        time_left = left(time.monotonic() - began_s)
        if text := progress_text(*stage, room - len(time_left)):
            return text + time_left
        return progress_text(*stage, room)

    return redrawn(stream, drawn, behind=True)


def header_lines(
    environment: Environment, options: MeasureOptions, resumed: ResumedResults | None
) -> Iterator[str]:
    """Yield lines about the machine, and warnings that apply to all measurements on it."""
    if options.injections:
        yield injection_warning(options.injections)
    if kind := GPU_KINDS.get(device := environment.device):
        machine = environment.hardware_label
        yield f"gpuscale {__version__}: {machine}, {kind.library} (device: {device})"
    else:
        why = "--device cpu" if options.device == "cpu" else "no GPU found"
        yield (
            f"gpuscale {__version__}: {why}, measuring CPU ranks over gloo, "
            f"{counted(options.threads_per_rank, 'thread')} a rank, "
            f"on {environment.hardware_label} (device: cpu)"
        )
    if (load := HostLoadMeter().read()).is_busy:
        yield f"this host is busy, so intervals will be wide: {load_text(load)}"
    if resumed is not None:
        yield from _resumed_lines(resumed, environment)


def _resumed_lines(resumed: ResumedResults, environment: Environment) -> Iterator[str]:
    runs = counted(len(resumed.results.runs), "run")
    yield f"resuming {relative(resumed.path)}: {runs} so far"
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


def relative(path: Path) -> str:
    """Return a path relative to the current folder if it lies below that folder, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


_SHOW_TABLES = ("columns", "compare", "compare_fail", "cprofile", "histogram", "verbose")
"""Options of pytest-benchmark (without `--benchmark-`) with which users ask for its tables."""


_Group = tuple[str | None, list[dict[str, Any]]]
"""Title and entries of one of pytest-benchmark's tables."""


class _WindowClock:
    """Timer for pytest-benchmark that counts only the durations measured by the ranks."""

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
    facts = {
        "device": run.configuration.device,
        "gpus": run.gpus,
        "run": run.index,
        "batch_per_gpu": run.batch_per_gpu,
    }
    benchmark.extra_info.update(facts)
    benchmark.params = {**(benchmark.params or {}), "scaling": label}
    benchmark.skipped = False
    step_times_s = iter([w.time_s / steps for w in run.windows for _ in range(steps)])

    def advance() -> None:
        # pedantic makes one more call, for the target's result, without a window.
        clock.now_s += next(step_times_s, 0.0)

    benchmark.pedantic(advance, rounds=len(run.windows), iterations=steps)


def of_other_tests(groups: Sequence[_Group], config: pytest.Config) -> list[_Group]:
    """Return pytest-benchmark's tables without gpuscale's runs, unless an option asks for all."""
    if any(getattr(config.option, f"benchmark_{name}", None) for name in _SHOW_TABLES):
        return [*groups]
    others = (
        (title, [each for each in tests if "scaling" not in (each["params"] or {})])
        for title, tests in groups
    )
    return [(title, tests) for title, tests in others if tests]
