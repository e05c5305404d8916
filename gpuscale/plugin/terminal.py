"""Lines that a session prints about the machine and, while it measures, about its progress."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

from gpuscale import __version__
from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.printable import SPELT_OUT
from gpuscale.measure.evidence.host_load import HostLoadMeter
from gpuscale.measure.launch import Launcher
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Environment
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
