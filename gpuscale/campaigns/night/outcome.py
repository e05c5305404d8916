"""Outcomes of attempts at a nightly run: how pytest ended, faults of the machine, exit codes."""

import os
import signal
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from types import FrameType
from typing import Literal

import msgspec

from gpuscale.base.errors import CANNOT_WRITE, ExitCode, GpuscaleError, MachineError, UsageError
from gpuscale.base.process_ends import PASSED_ON_S
from gpuscale.measure.schedulers.scheduler import Ending, JobState
from gpuscale.records import Results, Run
from gpuscale.reports.phrases import injection_warning

FAULT_FILE = "GPUSCALE_FAULT_FILE"
"""Environment variable with the path of the file in which pytest reports faults of the machine."""
LEFT_OUT = "gpuscale left out"
"""Name of the JUnit property whose value is an item's `NoRunReason`."""
NoRunReason = Literal["needless", "GPUs missing", "cannot be measured"]
"""Reason why a pytest item made no run; `needless` if no further run was needed."""

_INFRASTRUCTURE_KINDS = frozenset({"killed", "timeout", "launch", "system"})
"""Kinds of failures that the training code itself does not cause."""
_PYTEST_BROKEN = (3, 4)
"""Pytest's exit codes for an internal error and for wrong usage."""
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that request a stop, such as a scheduler's warning before it kills a job."""


class StopRequest:
    """Handles signals that request a stop: remembers the first one, and terminates pytest."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._running: Popen[bytes] | None = None
        for number in _ASKED_TO_END:
            signal.signal(number, self._on_signal)

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Run a program; return its exit code, or the negated number of the signal that ended it.

        The program's output goes to `log` and standard output; errors in writing are ignored.
        """
        try:
            process = Popen(
                command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, bufsize=0
            )
        except OSError as error:
            remedy = "run 'make setup', or put the environment that has it first on PATH"
            problem = f"{command[0]} cannot be started ({error.strerror})"
            raise UsageError(f"{problem}; {remedy}") from None
        self._running = process
        if self.number is not None:
            process.terminate()
        assert process.stdout is not None
        try:
            log.touch()
        except OSError:
            log = Path(os.devnull)
        with log.open("ab", buffering=0) as file:
            while chunk := process.stdout.read(65536):
                with suppress(OSError):
                    file.write(chunk)
                with suppress(OSError):
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
        self._running = None
        return process.wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is None and self._running is not None:
            # Schedulers and terminals signal all processes of a job; a second signal would
            # disturb a process that is shutting down properly.
            later = threading.Timer(PASSED_ON_S, self._running.terminate)
            later.daemon = True
            later.start()
        self.number = self.number or number


def own_pytest() -> str:
    """Return the path of this Python environment's pytest, or just `pytest` if it has none."""
    # cron's PATH may have another one first, or none.
    own = Path(sys.argv[0]).resolve().with_name("pytest")
    return str(own) if own.is_file() else "pytest"


class Items(msgspec.Struct, frozen=True):
    """Test items of one pytest session, one per requested run, as listed in the JUnit file."""

    count: int
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Kind (`NoRunReason`) of each reason that pytest gave for skipping a run that was needed."""
    uncollected: tuple[str, ...] = ()
    """Files and tests that pytest could not collect, such as a case that cannot be imported."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one invocation of pytest in a nightly run."""

    exit_code: int
    """Exit code of pytest, or the negated number of the signal that ended it."""
    stopped_by: int | None
    """Number of the signal that requested a stop; None if no signal did."""
    items: Items
    results: Results | None
    machine: str | None = None
    """Fault of the machine that kept the pytest session from starting; None if there was none."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs in the results file so far, including failed ones."""
        return () if self.results is None else self.results.runs

    @property
    def has_measured(self) -> bool:
        """True if at least one run is valid."""
        return any(run.is_valid for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """True if every requested run was measured, even if a stop was requested afterwards."""
        return self.exit_code == 0 and self.items.count > 0 and not self.items.left_out

    @property
    def faults(self) -> tuple[str, ...]:
        """Probable faults of nodes, network, file system or scheduler; none after a stop signal."""
        return () if self.stopped_by is not None or self.is_complete else tuple(self._faults())

    def _faults(self) -> Iterator[str]:
        # A failed run that was repeated successfully is no fault.
        done = {(run.key, run.configuration, run.index) for run in self.runs if run.is_valid}
        for run in self.runs:
            failure, made = run.failure, (run.key, run.configuration, run.index)
            if failure and failure.kind in _INFRASTRUCTURE_KINDS and made not in done:
                message, host = failure.message, failure.host
                where = "" if host is None or host in message else f" (on {host})"
                yield f"{run.label}, run {run.index}: {message}{where}"
        for reason, kind in self.items.left_out.items():
            if kind == "GPUs missing":
                yield f"GPUs are missing: {reason}"
        if self.exit_code < 0 or self.exit_code >= 128:
            number = -self.exit_code if self.exit_code < 0 else self.exit_code - 128
            memory = " (out of memory?)" if number == signal.SIGKILL else ""
            yield f"pytest was ended by {signal_name(number)}{memory}"
        elif self.exit_code == CANNOT_WRITE:
            yield "results could not be written; see the end of pytest.log"
        if self.machine:
            yield self.machine


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    return {known.value: known.name for known in signal.Signals}.get(number, f"signal {number}")


def read_items(path: Path) -> Items:
    """Read pytest's JUnit XML file; return no items if it is missing or broken after a crash."""
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return Items(count=0)
    reasons: dict[str, str] = {}
    for case in cases:
        skipped = case.find("skipped")
        marks = {mark.get("name"): mark.get("value", "") for mark in case.iter("property")}
        if skipped is not None and marks.get(LEFT_OUT) != "needless":
            reasons[skipped.get("message", "")] = marks.get(LEFT_OUT, "")
    broken = "error[@message='collection failure']"
    uncollected = tuple(case.get("name", "") for case in cases if case.find(broken) is not None)
    return Items(len(cases), reasons, uncollected)


def report_to_night(error: GpuscaleError, environment: Mapping[str, str]) -> None:
    """If `error` is a fault of the machine, report it to the nightly run through a file."""
    if (path := environment.get(FAULT_FILE)) is not None and isinstance(error, MachineError):
        with suppress(OSError):
            Path(path).write_text(f"nothing could be started: {error}")


_MEANINGS: Mapping[int, str] = {
    ExitCode.OK: "ok",
    ExitCode.REGRESSED: "regressed",
    ExitCode.USAGE: "it could not be run or judged",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
    ExitCode.INCOMPLETE: "not everything was measured",
    ExitCode.INFRASTRUCTURE: "infrastructure failed",
}
UNJUDGED = "all was measured, nothing failed; not judged yet"
"""Outcome, in words, of a night that measured everything but was not compared."""
_VERDICTS = frozenset(
    (ExitCode.OK, ExitCode.REGRESSED, ExitCode.INCONCLUSIVE, ExitCode.NOTHING_COMPARABLE)
)


def night_exit(attempt: Attempt, compare_exit: int | None) -> ExitCode:
    """Return the exit code of a nightly run; `compare_exit` is None if nothing was compared.

    A regression takes precedence over everything else, and faults over missing runs.
    """
    if compare_exit == ExitCode.REGRESSED:
        return ExitCode.REGRESSED
    if compare_exit is not None and compare_exit not in _VERDICTS:
        return ExitCode.USAGE
    if attempt.faults:
        return ExitCode.INFRASTRUCTURE
    if not attempt.has_measured:
        # Pytest's exit code 2 means either a case that cannot be imported or an interrupt.
        could_run = attempt.exit_code not in _PYTEST_BROKEN and not attempt.items.uncollected
        return ExitCode.NOTHING_COMPARABLE if could_run else ExitCode.USAGE
    if not attempt.is_complete:
        return ExitCode.INCOMPLETE
    return ExitCode.NOTHING_COMPARABLE if compare_exit is None else ExitCode(compare_exit)


def night_meaning(code: ExitCode, attempt: Attempt, compare_exit: int | None) -> str:
    """Describe a nightly run's exit code in words, with a warning if faults were injected."""
    meaning = _MEANINGS[code]
    if code == ExitCode.NOTHING_COMPARABLE and not attempt.has_measured:
        meaning = "nothing was measured"
    elif code == ExitCode.NOTHING_COMPARABLE and compare_exit is None:
        meaning = UNJUDGED
    elif code == ExitCode.INCOMPLETE and compare_exit in (ExitCode.OK, ExitCode.INCONCLUSIVE):
        meaning += f"; of what was measured: {_MEANINGS[compare_exit]}"
    elif code == ExitCode.INCOMPLETE and compare_exit is None and attempt.has_measured:
        meaning += "; not judged"
    if attempt.stopped_by is not None and not attempt.is_complete:
        meaning += f"; stopped by {signal_name(attempt.stopped_by)} (the job's time limit?)"
    warning = injection_warning(attempt.results.injections) if attempt.results else ""
    return f"{warning}; {meaning}" if warning else meaning


def job_exit(state: JobState) -> tuple[ExitCode, str]:
    """Return the exit code of a nightly job (0 only if the job completed) and its meaning."""
    code = state.exit_code
    if state.ending is Ending.RESOURCES_LOST:
        return ExitCode.INFRASTRUCTURE, _MEANINGS[ExitCode.INFRASTRUCTURE]
    if state.ending is Ending.TIME_UP:
        return ExitCode.INCOMPLETE, "its time was up; what had been measured by then is kept"
    if state.remark is not None:
        return ExitCode.USAGE, state.remark
    if code == ExitCode.OK and state.ending is not Ending.COMPLETED:
        return ExitCode.USAGE, "somebody ended the job; see its log"
    if code == ExitCode.NOTHING_COMPARABLE:
        expected = "nothing was judged, as is expected of first nights"
        return ExitCode(code), f"{expected}; the last lines of its log say why"
    if code is not None and code in _MEANINGS:
        return ExitCode(code), _MEANINGS[code]
    # A nightly run never returns such a code, so a signal or another program ended the job.
    ending = "no exit code" if code is None else f"exit code {code}"
    return ExitCode.USAGE, f"{ending}, with which no night ends; see its log"
