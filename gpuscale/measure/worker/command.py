"""Watch the command of a run until its output yields enough windows; report a failure otherwise.

The command is in one state at a time (`_State`); every state except RUNNING ends the watch.
"""

import os
import signal
import socket
import time
from enum import Enum, auto
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from gpuscale.base.foreign_texts import LOST_PEER_LINES
from gpuscale.base.host import (
    adopt_orphans,
    descendants,
    end_descendants,
    living_descendants,
    signal_at_parent_death,
)
from gpuscale.base.units import counted
from gpuscale.measure.evidence.interpreter import software_of
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.measure.waits import COMMAND_S
from gpuscale.measure.worker.command_process import (
    RANK_COUNT_VARIABLES,
    rank_counts,
    start_command,
)
from gpuscale.measure.worker.last_words import LastWords
from gpuscale.measure.worker.log_reader import FEWEST_WINDOWS, CommandError, LogReader
from gpuscale.measure.worker.output import COMMAND_SOURCE, Output
from gpuscale.records import FailureKind, RunRequest
from gpuscale.records.request import RankFailure
from gpuscale.workload.command_case import fields_of, starter_of

_LOOK_S = 0.2
_DRAIN_S = 1.0
_WAIT_FOR_OTHERS_S = 3.0


def main(folder: str) -> None:
    """Run the command of the request in a folder, and write its windows or its failure there."""
    signal_at_parent_death(signal.SIGTERM)
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    directory = RunDirectory(path=Path(folder))
    request = directory.request.read()
    rank = int(os.environ["RANK"]) if directory.hosts.exists() else None
    try:
        _Watch(request, directory, rank).measure()
    except CommandError as error:
        _leave_failure(error, directory, rank)
        raise SystemExit(1) from None
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        end_descendants(COMMAND_S)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _leave_failure(error: CommandError, directory: RunDirectory, rank: int | None) -> None:
    """Write the failure; if another node may be the cause, wait a few seconds for its failure."""
    own_rank = error.failure.rank if rank is None else rank
    failure = replace(error.failure, rank=own_rank, host=socket.gethostname())
    is_end = failure.kind in ("raised", "killed")
    lost_peer = is_end and LOST_PEER_LINES.search(failure.detail) is not None
    report = RankFailure(failure=failure, lost_peer=lost_peer, steps_told=error.steps_told)
    directory.failure(rank or 0).write(report)
    if rank is not None and (lost_peer or failure.kind == "timeout"):
        # When one task has failed the scheduler ends the others.
        time.sleep(_WAIT_FOR_OTHERS_S)


class _State(Enum):
    """The state of a command; if several states apply, the one listed first counts."""

    ENOUGH = auto()
    """The output on this node yields enough windows."""
    ENOUGH_ELSEWHERE = auto()
    """The output on another node yields enough windows."""
    ENDED = auto()
    LATE = auto()
    RUNNING = auto()


class _Watch:
    """Watches one command from its start until its state is no longer RUNNING."""

    def __init__(self, request: RunRequest, directory: RunDirectory, rank: int | None) -> None:
        self._request, self._directory, self._rank = request, directory, rank
        self._place = "" if rank is None else f"rank {rank} on {socket.gethostname()}"
        self._output = Output()
        self._reader = LogReader(request, shared_pipe=request.gpus > 1 and rank is None)
        self._has_valid_ranks = rank is not None
        self._has_software = False
        self._clock_s = time.time() - time.monotonic()
        self._started_s = time.monotonic()
        self._processes = start_command(request, directory, rank, self._output)
        self._codes: list[int | None] = []
        """Exit codes of the processes; None for a process that is still running."""

    def measure(self) -> None:
        """Watch the command while it is RUNNING, then write the outcome or raise CommandError."""
        reader, directory = self._reader, self._directory
        while (state := self._next_state()) is _State.RUNNING:
            windows = reader.windows
            found, wanted = 0, FEWEST_WINDOWS
            if windows is not None:
                found, wanted = len(windows.spans), windows.wanted
            # A rank whose lines count no steps leaves the report to others.
            if self._rank is None or reader.has_steps:
                _report(directory, found, wanted)
        self._record_software()
        if state is _State.ENDED:
            self._explain_end()
        elif state is _State.LATE:
            why = reader.standstill(time.monotonic()) or (
                f"the command was not done after {self._request.timeout_s:g} s: "
                f"{reader.told_so_far()}"
            )
            remedy = "Give" if reader.has_steps else "If it was only starting, give"
            message = f"{why}. {remedy} it more with --timeout, or see below what it printed last"
            raise reader.failed(message, "timeout")
        elif state is _State.ENOUGH:
            windows = reader.windows
            assert windows is not None
            _report(directory, windows.wanted, windows.wanted)
            outcome = reader.outcome(windows, started_s=self._started_s, clock_s=self._clock_s)
            directory.command_outcome(self._rank or 0).write(outcome)
            write_atomically(directory.enough, f"rank {self._rank}")

    def _next_state(self) -> _State:
        """Read lines for a short time, check them and the processes, and return the new state."""
        next_look_s = time.monotonic() + _LOOK_S
        now_s = 0.0
        while now_s < next_look_s:
            self._reader.take(self._output.lines(_LOOK_S))
            now_s = time.monotonic()
        is_late = now_s > self._started_s + self._request.timeout_s
        self._reader.validate_lines(self._rank or 0, is_late=is_late)
        if self._reader.has_steps and not self._has_valid_ranks:
            self._validate_rank_count()
            self._has_valid_ranks = True
        if self._reader.has_steps and not self._has_software:
            # While warming up: the command may end by itself after its last window.
            self._record_software()
        self._codes = [process.poll() for process in self._processes]
        has_failed = any(self._codes)
        has_ended = has_failed or None not in self._codes
        if has_ended:
            # For a limited time: processes left in the background may go on printing.
            while (lines := self._output.lines(0)) and time.monotonic() < now_s + _DRAIN_S:
                self._reader.take(lines)
        if (windows := self._reader.windows) is not None:
            is_complete = has_ended and not has_failed
            needed = min(windows.wanted, FEWEST_WINDOWS) if is_complete else windows.wanted
            if len(windows.spans) >= needed:
                return _State.ENOUGH
        if self._rank is not None and self._directory.enough.exists():
            return _State.ENOUGH_ELSEWHERE
        if has_ended:
            return _State.ENDED
        return _State.LATE if is_late else _State.RUNNING

    def _record_software(self) -> None:
        """Record the software of the processes; if they have ended, keep what was recorded."""
        found = software_of(descendants(), with_packages=not self._rank)
        if found.software.packages or found.libraries or not self._has_software:
            self._directory.software(self._rank or 0).write(found)
            self._has_software = True

    def _validate_rank_count(self) -> None:
        """Raise CommandError if the command started a different number of ranks than requested.

        The check passes if the processes do not show how many ranks there are.
        """
        command, gpus, on_gpu = self._request.command, self._request.gpus, self._request.devices
        assert command is not None
        counts = rank_counts()
        if not (counts or on_gpu or any(name in os.environ for name in RANK_COUNT_VARIABLES)):
            # Without GPUs, each rank that a starter makes has such a variable; else it made none.
            # Ranks that have just failed no longer show theirs.
            made_none = starter_of(command.words) and not self._reader.has_heard_ranks
            counts = {1} if made_none else counts
        if not counts or gpus in counts:
            return
        ranks, has_number = max(counts), "gpus" in fields_of(command.words)
        # A rank may drive several GPUs if the command is given their number.
        if on_gpu and gpus % ranks == 0 and has_number:
            return
        unnamed = "write {gpus} where the command has their number"
        remedy = "see why, since it has {gpus}" if has_number else unnamed
        asked = counted(gpus, "GPU" if on_gpu else "CPU rank")
        raise self._reader.failed(
            f"the command started {counted(ranks, 'rank')} in a run on {asked}; {remedy}"
        )

    def _explain_end(self) -> None:
        """Raise CommandError if the command ended early, unless another node has enough windows."""
        failed = {f"rank {number}": code for number, code in enumerate(self._codes) if code}
        code = next(iter(failed.values()), 0)
        if len(self._codes) == 1:
            # It may have passed on the exit code of a process that it started, but not a signal.
            failed = {COMMAND_SOURCE: code} if code < 0 else {}
        words = self._reader.last_words(failed)
        # A rank may have failed though the command ended well, as in `torchrun … | tee log`.
        code = code if words.exit_code is None else words.exit_code
        if code:
            raise self._failed_end(code, words)
        deadline_s = time.monotonic() + _WAIT_FOR_OTHERS_S
        while self._rank is not None and time.monotonic() < deadline_s:
            if self._directory.enough.exists():
                return
            time.sleep(_LOOK_S)
        has_steps = self._reader.has_steps
        if not self._rank or has_steps:
            left = " (processes that it left in the background do not count)"
            left = left if living_descendants() else ""
            raise self._reader.failed(
                f"the command ended too early{left}: {self._reader.told_so_far()}",
                "invalid" if has_steps else "unread",
            )

    def _failed_end(self, code: int, words: LastWords) -> CommandError:
        """Return the error for a non-zero exit code of a command or of the rank that ended it."""
        kind: FailureKind = "raised"
        who, place = words.source, f" as {self._place}" if self._place else ""
        if words.exception is not None:
            who = self._place or who
            end = f"raised {words.exception}"
        elif code < 0:
            kind = "killed"
            reason = " (out of memory?)" if -code == signal.SIGKILL else ""
            end = f"was killed by {signal.Signals(-code).name}{place}{reason}"
        else:
            end = f"ended with exit code {code}{place}"
        shown = "its last lines are below"
        if not words.lines:
            shown = "it printed nothing, and the last lines of others are below"
        number = words.source.removeprefix("rank ")
        rank = int(number) if number.isdigit() else self._rank
        return self._reader.failed(f"{who} {end}; {shown}", kind, words.lines, rank)


def _report(directory: RunDirectory, done: int, total: int) -> None:
    write_atomically(directory.progress, f"window\t{min(done, total)}\t{total}")
