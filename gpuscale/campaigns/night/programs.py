"""Start the programs of a nightly run: pytest, stopped on request, and the verdict command."""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from types import FrameType

from gpuscale.base.errors import UsageError

ON_VERDICT = "GPUSCALE_ON_VERDICT"
"""Environment variable with the site's verdict command, which may send mail or open a ticket."""
_END_OF_COMMAND_S = 60.0
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that request a stop, like Slurm's and Grid Engine's warnings before a job is killed."""
_PASSED_ON_AFTER_S = 2.0


class StopRequest:
    """Remembers the first signal that requests a stop, and terminates the running pytest."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._running: Popen[bytes] | None = None
        for number in _ASKED_TO_END:
            signal.signal(number, self._on_signal)

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Run a program; return its exit code, or the negated number of the signal that ended it.

        The program's output is copied to a log and to standard output; if writing to one fails, the
        other is still written. The program is terminated when this process is asked to stop.
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
            later = threading.Timer(_PASSED_ON_AFTER_S, self._running.terminate)
            later.daemon = True
            later.start()
        self.number = self.number or number


def run_on_verdict(
    command: str,
    document: Path,
    *,
    code: int,
    meaning: str,
    end_s: float = _END_OF_COMMAND_S,
) -> str | None:
    """Run the site's verdict command; return its failure, such as `ended with 3`, None on success.

    The command can read the document, JSON in the night's or sweep's folder, from standard input,
    which is empty if there is no such file. After `end_s` seconds the command is killed, with all
    processes that it has started.
    """
    environment = {
        **os.environ,
        "GPUSCALE_NIGHT_EXIT": str(code),
        "GPUSCALE_NIGHT_MEANING": meaning,
        "GPUSCALE_NIGHT_FOLDER": str(document.parent.absolute()),
    }
    try:
        with (document if document.is_file() else Path(os.devnull)).open("rb") as verdict:
            process = Popen(
                ["/bin/sh", "-c", command], stdin=verdict, env=environment, start_new_session=True
            )
    except (OSError, ValueError) as error:
        return f"could not be started ({error})"
    try:
        exit_code = process.wait(end_s)
    except TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {end_s:g} s and was killed"
    return f"ended with {exit_code}" if exit_code else None
