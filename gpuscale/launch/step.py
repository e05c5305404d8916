"""The command that runs a step on other nodes: waiting for it, for its files, and for its end."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuscale.encoding import from_json
from gpuscale.errors import DecodeError
from gpuscale.records import RankExit
from gpuscale.run_directory import RunDirectory

_LOOK_S = 0.05
_LOOK_AT_EXITS_S = 2.0
_END_S = 20.0
_END_AFTER_FAILURE_S = 5.0
_FILES_S = 30.0
"""How long files that another node has written may take to be seen on this one."""


def _ended_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def ended_in_time(
    process: "subprocess.Popen[bytes]", directory: RunDirectory, ranks: int, seconds: float
) -> bool:
    """Wait for the command; False where its time is up.

    A command whose node has died does not end by itself when another rank fails of it.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _ended_within(process, min(_LOOK_AT_EXITS_S, seconds)):
            return True
        if any(exited.code for exited in exits_left(directory, ranks)):
            _ended_within(process, _END_AFTER_FAILURE_S)
            return True
    return False


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the command and with it its tasks, if they have not ended."""
    if process.poll() is None:
        # Both srun and mpirun then kill what they started.
        process.terminate()
        if not _ended_within(process, _END_S):
            process.kill()
            process.wait()


def wait_for(paths: Iterable[Path], *, patience_s: float = _FILES_S) -> None:
    """Wait until files written on other nodes are there and not empty, or the patience ends."""
    deadline = time.monotonic() + patience_s
    for path in paths:
        while time.monotonic() < deadline and not _has_text(path):
            time.sleep(_LOOK_S)


def _has_text(path: Path) -> bool:
    # To list the folder makes a network file system look again.
    return path in path.parent.iterdir() and path.stat().st_size > 0


def exits_left(directory: RunDirectory, ranks: int) -> list[RankExit]:
    """How the ranks ended whose tasks could still tell it, the first one first.

    When one has failed, the scheduler kills the others.
    """
    found = []
    for rank in range(ranks):
        path = directory.exit(rank)
        with contextlib.suppress(OSError, DecodeError):
            exited = from_json(RankExit, path.read_text(encoding="utf-8"))
            found.append((path.stat().st_mtime_ns, rank, exited))
    return [exited for _, _, exited in sorted(found, key=lambda entry: entry[:2])]


def own_failures(exits: Sequence[RankExit]) -> dict[int, int]:
    """The exit codes of ranks that failed; not of those that were killed because one had."""
    failed = [exited for exited in exits if exited.code]
    return {
        exited.rank: exited.code
        for position, exited in enumerate(failed)
        if position == 0 or exited.code != -signal.SIGKILL
    }
