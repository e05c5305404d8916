"""Watch a run's command until its output yields enough timed windows, or report a failure."""

import os
import signal
import socket
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base import process_ends
from gpuscale.base.known_error_messages import LOST_PEER_LINES
from gpuscale.base.text import counted
from gpuscale.measure.evidence.software import software_of
from gpuscale.measure.run_directory import RunDirectory, scratch_folder, write_atomically
from gpuscale.measure.worker.command_process import RANK_COUNT_VARIABLES, Place, start_command
from gpuscale.measure.worker.log_reader import FigureReader, LogReader
from gpuscale.measure.worker.output import CommandError, LastWords, Output
from gpuscale.measure.worker.windows import FEWEST_WINDOWS, Windows
from gpuscale.records import FailureKind
from gpuscale.records.request import RankFailure
from gpuscale.workload.command_case import fields_of, starter_of

_LOOK_S = 0.2
_DRAIN_S = 1.0
_WAIT_FOR_OTHERS_S = 3.0
_FIRST_SOFTWARE_S = 1.0


def main(folder: str) -> None:
    """Run the command described by the request in `folder`; write its result or failure there."""
    process_ends.signal_at_parent_death(signal.SIGTERM)
    process_ends.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = RunDirectory(path=Path(folder))
    request, rank = directory.request.read(), int(os.environ["RANK"])
    assert request.command is not None
    place = Place(request, request.command, directory, rank, directory.hosts.exists())
    if request.launch != "per-rank":
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    # If a command is started once, not all of its processes are descendants of this process.
    variable = directory.variable if place.covers_all_nodes else None
    starts_ranks_here = place.rank is None and not place.covers_all_nodes
    with scratch_folder("gpuscale-pipes-") if starts_ranks_here else nullcontext() as pipes:
        try:
            if place.number and place.covers_all_nodes:
                _record_software_until_end(place)
            else:
                _Watch(place, pipes).measure()
        except CommandError as error:
            _leave_failure(error, place)
            raise SystemExit(1) from None
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            process_ends.end_descendants(process_ends.COMMAND_S, variable=variable)


def _record_software_until_end(place: Place) -> None:
    """Wait until another node has timed the command; meanwhile, record this node's software."""
    directory, has_looked = place.directory, False
    while not directory.enough.exists():
        if not has_looked and directory.progress.exists():
            place.world_sizes()
            software = software_of(place.processes(), with_packages=False)
            directory.software(place.number).write(software)
            has_looked = True
        time.sleep(_LOOK_S)


def _leave_failure(error: CommandError, place: Place) -> None:
    """Write the failure; if another node may have caused it, give that node time to report."""
    own_rank = error.failure.rank if place.rank is None else place.rank
    host = None if place.covers_all_nodes else socket.gethostname()
    failure = replace(error.failure, rank=own_rank, host=host)
    is_end = failure.kind in ("raised", "killed")
    lost_peer = is_end and LOST_PEER_LINES.search(failure.detail) is not None
    report = RankFailure(failure=failure, lost_peer=lost_peer, steps_reported=error.steps_reported)
    place.directory.failure(place.number).write(report)
    if place.has_peers and (lost_peer or failure.kind == "timeout"):
        # The scheduler ends the other tasks when this one exits with a failure.
        time.sleep(_WAIT_FOR_OTHERS_S)


class _Watch:
    """Watches one command until it ends, times out, or has reported enough steps."""

    def __init__(self, place: Place, pipes: Path | None) -> None:
        self._place, self._request, self._directory = place, place.request, place.directory
        self._output = Output()
        self._figures = None if place.command.figure is None else FigureReader(self._request)
        self._reader = self._figures or LogReader(self._request)
        # Ranks of a benchmark are not validated: it may have ended when its output arrives.
        self._has_valid_ranks = place.rank is not None or self._figures is not None
        self._has_software = False
        self._clock_s = time.time() - time.monotonic()
        self._started_s = time.monotonic()
        self._next_software_s = self._started_s + _FIRST_SOFTWARE_S
        self._process = start_command(place, pipes, self._output)

    def measure(self) -> None:
        """Watch the command; write its outcome, unless another node does, or raise CommandError."""
        reader, directory = self._reader, self._directory
        while True:
            code, is_late = self._look()
            windows = self._enough_windows(code)
            has_other_enough = self._figures is None and directory.enough.exists()
            if windows is not None or has_other_enough or code is not None or is_late:
                break
            # A process that has read no steps leaves progress reports to others, but for rank 0.
            is_first = not self._place.has_peers or self._place.rank == 0
            if reader.latest and (self._figures is not None or reader.has_steps or is_first):
                _report(directory, *reader.progress())
        self._record_software()
        if windows is not None:
            _report(directory, "window", windows.wanted, windows.wanted)
            outcome = reader.outcome(windows, started_s=self._started_s, clock_s=self._clock_s)
            directory.command_outcome(self._place.number).write(outcome)
            write_atomically(directory.enough, socket.gethostname())
        elif has_other_enough:
            return
        elif code == 0 and self._figures is not None:
            directory.figures(self._place.number).write(self._figures.figures())
            write_atomically(directory.enough, socket.gethostname())
        elif code is not None:
            self._explain_end(code)
        else:
            raise reader.failed(
                f"the command was not done after {self._request.timeout_s:g} s: "
                f"{reader.explain_incomplete()}. If it only needs longer, give --timeout more",
                "timeout",
            )

    def _look(self) -> tuple[int | None, bool]:
        """Read output for 0.2 s; return (exit code or None if running, whether timed out)."""
        next_look_s = time.monotonic() + _LOOK_S
        now_s = 0.0
        while now_s < next_look_s:
            self._reader.take(self._output.lines(_LOOK_S))
            now_s = time.monotonic()
        is_late = now_s > self._started_s + self._request.timeout_s
        self._reader.validate_lines(self._place.rank or 0, is_late=is_late)
        is_elsewhere = self._place.has_peers and self._directory.progress.exists()
        if not self._has_valid_ranks and (self._reader.has_steps or is_elsewhere):
            self._validate_started_ranks()
            self._has_valid_ranks = True
        self._look_at_software(now_s)
        if (code := self._process.poll()) is not None:
            # For a limited time: processes left in the background may go on printing.
            while (lines := self._output.lines(0)) and time.monotonic() < now_s + _DRAIN_S:
                self._reader.take(lines)
        return code, is_late

    def _enough_windows(self, code: int | None) -> Windows | None:
        """Return the timed windows; None if too few. After exit code 0, FEWEST_WINDOWS suffice."""
        if (windows := self._reader.windows) is None:
            return None
        # After the warm-up: lines that have not told the batch by now never will.
        self._reader.global_batch()
        needed = min(windows.wanted, FEWEST_WINDOWS) if code == 0 else windows.wanted
        return windows if len(windows.spans) >= needed else None

    def _look_at_software(self, now_s: float) -> None:
        """Record software after the command's first step; with `--figure`, at growing intervals."""
        is_due = self._reader.has_steps and not self._has_software
        if self._figures is not None and now_s > self._next_software_s:
            # Without steps, nothing shows when all libraries have been loaded.
            is_due = True
            self._next_software_s = now_s + (now_s - self._started_s)
        if is_due:
            self._record_software()

    def _record_software(self) -> None:
        """Record the command's libraries and packages; never replace a record by an empty one."""
        found = software_of(self._place.processes(), with_packages=not self._place.number)
        has_all = found.libraries if self._place.number else found.software.packages
        if has_all or not self._has_software:
            self._directory.software(self._place.number).write(found)
            self._has_software = True

    def _validate_started_ranks(self) -> None:
        """Raise CommandError if the command has started more or fewer ranks than requested."""
        place, reader, gpus = self._place, self._reader, self._request.gpus
        on_gpu, words = self._request.devices, place.command.words
        counts = place.world_sizes()
        is_known = counts or any(name in os.environ for name in RANK_COUNT_VARIABLES)
        if not (is_known or on_gpu or place.covers_all_nodes) and reader.has_steps:
            # On CPU, each rank that torchrun and the like create has such a variable, unless it
            # has just failed. Without variables or lines of ranks, no rank has been created.
            counts = {1} if starter_of(words) and not reader.has_rank_lines else counts
        if not counts or gpus in counts:
            return
        ranks, has_number = max(counts), "gpus" in fields_of(words)
        # A rank may drive several GPUs if the command is given their number.
        if on_gpu and gpus % ranks == 0 and has_number:
            return
        unnamed = "write {gpus} where the command has their number"
        remedy = "see why, since it has {gpus}" if has_number else unnamed
        asked, made = counted(gpus, "GPU" if on_gpu else "CPU rank"), counted(ranks, "rank")
        raise reader.failed(f"the command started {made} in a run on {asked}; {remedy}")

    def _explain_end(self, code: int) -> None:
        """Raise CommandError to explain an early end, unless another node reports the outcome."""
        # The command may have passed on the exit code of a child, but not a child's signal.
        words = self._reader.last_words(code)
        # A rank may have failed although the command's code is 0, as in `torchrun … | tee log`.
        code = code if words.exit_code is None else words.exit_code
        if code:
            raise self._failed_end(code, words)
        has_steps = self._reader.has_steps
        deadline_s = time.monotonic() + _WAIT_FOR_OTHERS_S * (1 if has_steps else 2)
        while self._place.has_peers and time.monotonic() < deadline_s:
            # If nodes fail together, a node that has read steps gives the better message.
            if self._directory.enough.exists() or (not has_steps and self._directory.failures()):
                return
            time.sleep(_LOOK_S)
        if not self._place.number or has_steps:
            left = " (what it left in the background does not count)"
            left = left if process_ends.living_descendants() else ""
            raise self._reader.failed(
                f"the command ended{left}: {self._reader.explain_incomplete()}",
                "invalid" if has_steps else "unread",
            )

    def _failed_end(self, code: int, words: LastWords) -> CommandError:
        """Return an error that tells from `code` and `words` how the command or a rank failed."""
        kind: FailureKind = "raised"
        own, place = self._place.rank, self._place.label
        if words.exception is not None:
            end = f"{place} raised {words.exception}"
        elif code < 0:
            kind = "killed"
            reason = " (out of memory?)" if -code == signal.SIGKILL else ""
            end = f" was killed by {signal.Signals(-code).name}{place}{reason}"
        else:
            end = f" ended with exit code {code}{place}"
            # Such as Python's own message on a script that is not there.
            end += f", after printing: {words.lines[-1].strip()}" if words.lines else ""
        silent = "" if words.lines else "; it printed nothing"
        number = words.source.removeprefix("rank ")
        rank = int(number) if number.isdigit() else own
        who = words.source if own is None else f"rank {own}"
        return self._reader.failed(f"{who}{end}{silent}", kind, words.lines, rank)


def _report(directory: RunDirectory, what: str, done: int, total: int) -> None:
    write_atomically(directory.progress, f"{what}\t{min(done, total)}\t{total}")
