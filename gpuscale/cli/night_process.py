"""Programs of a night: what they say is shown and kept, and a signal to end reaches them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from gpuscale.errors import UsageError
from gpuscale.launch.mpirun import job_hosts

_END_CHARACTERS = 20_000
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they kill: Slurm SIGTERM, Grid Engine SIGUSR1 and SIGUSR2."""
_PATIENCE_S = 2.0


class Stopping:
    """Notes the first signal that asks for the end, and sees to it that the program hears of it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._ending: subprocess.Popen[bytes] | None = None
        for number in _ASKED_TO_END:
            signal.signal(number, self._asked)

    def run(self, command: Sequence[str], *, log: Path) -> tuple[int, str]:
        """Run a program to its end, copying its output to a log and to standard output.

        Returns:
            Its exit code, negative for the signal that ended it, and the end of its output.

        Raises:
            UsageError: there is no such program.
        """
        return _finish(_start(command, None), log)

    def run_until_asked(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> tuple[int, str]:
        """As `run`, but the program is ended when this process is asked to end."""
        self._ending = _start(command, environment)
        if self.number is not None:
            _end(self._ending)
        ended = _finish(self._ending, log)
        self._ending = None
        return ended

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            return
        self.number = number
        if self._ending is not None:
            # Schedulers and terminals signal all processes of a job; a second signal would
            # disturb one that is ending in order.
            later = threading.Timer(_PATIENCE_S, _end, [self._ending])
            later.daemon = True
            later.start()


def _start(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started ({error.strerror}); run 'make setup', or put the "
            "environment that has it first on PATH"
        ) from None


def _finish(process: "subprocess.Popen[bytes]", log: Path) -> tuple[int, str]:
    assert process.stdout is not None
    end = _copy(process.stdout, log)
    return process.wait(), end


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        process.send_signal(signal.SIGTERM)


def _copy(source: IO[bytes], log: Path) -> str:
    """Copy to standard output and to a file, also where one of them takes nothing more."""
    end = b""
    with open(log, "ab", buffering=0) if _can_write(log) else open(os.devnull, "wb") as file:  # noqa: PTH123
        while chunk := source.read(65536):
            end = (end + chunk)[-_END_CHARACTERS:]
            with suppress(OSError):
                file.write(chunk)
            with suppress(OSError):
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
    return end.decode("utf-8", errors="replace")


def _can_write(log: Path) -> bool:
    try:
        log.touch()
    except OSError:
        return False
    return True


def answer_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """What a short command prints; None where it fails or does not answer."""
    try:
        answer = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return answer.stdout.strip()


def nodes_of_the_job() -> tuple[str, ...]:
    """The nodes that the scheduler gave this job, by its names; empty where it does not tell."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if nodes is None:
        with suppress(OSError):
            return job_hosts(os.environ)
        return ()
    names = answer_of(["scontrol", "show", "hostnames", nodes])
    return tuple(names.split()) if names else ()


def lost_nodes(nodes: Sequence[str]) -> tuple[str, ...]:
    """Those nodes of a Slurm job that Slurm itself has lost; empty where it does not tell."""
    if "SLURM_JOB_ID" not in os.environ or not nodes:
        return ()
    question = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N"]
    lost = answer_of([*question, "--states=down,fail,no_respond"])
    return tuple(dict.fromkeys(lost.split())) if lost else ()
