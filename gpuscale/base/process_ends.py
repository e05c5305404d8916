"""Functions that find and end processes, and that end a process when its parent dies.

`python process_ends.py PARENT COMMAND …` replaces itself with COMMAND, which gets SIGTERM when
process PARENT dies. `srun` and `mpirun` end all their processes at SIGTERM, but would not notice
that pytest was killed with SIGKILL. This file is run by path, so it imports nothing from gpuscale.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

FAULT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
"""Signals that indicate a fault in a process; SIGABRT and SIGTERM are not among them, since they
may merely result from the end of another process."""

# Seconds that a process waits for others to end before it uses force. Each wait is long enough for
# the other processes to complete their own waits.
#
# processes of a command    SIGTERM from the watcher of the command, to its launcher first and to
#                           all after half of COMMAND_S; SIGKILL after COMMAND_S
# a rank                    SIGKILL from the keeper at once
# the watcher of a command  SIGTERM from the keeper; SIGKILL after RANK_S
# the ranks of a run        an order from the launcher to the keepers; the launcher ends the keepers
#                           after RUN_S
# the keepers of a session  end of their standard input; SIGTERM to `srun` or `mpirun` after
#                           KEEPERS_S, and SIGKILL after STEP_S
# pytest in a night         SIGTERM from `gpuscale night`, PASSED_ON_S after it gets a signal itself
# a site's own command      SIGKILL from `gpuscale night` after ON_VERDICT_S
COMMAND_S, RANK_S, RUN_S, KEEPERS_S, STEP_S = 8.0, 11.0, 20.0, 14.0, 20.0
PASSED_ON_S, ON_VERDICT_S = 2.0, 60.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def parent_of(process: int | str, root: Path = Path("/")) -> int:
    """Return the process ID of a process's parent; raise an OSError if the process has ended."""
    # The process name, in parentheses, may contain any character.
    stat = (root / f"proc/{process}/stat").read_text(errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def signal_at_parent_death(number: signal.Signals) -> None:
    """Ask Linux to send this process a signal when its parent dies; a no-op on other systems."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of its orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(process: int | None = None, root: Path = Path("/")) -> set[int]:
    """Return the IDs of all descendants of a process (default: this one); empty except on Linux."""
    children: dict[int, list[int]] = {}
    for place in (root / "proc").glob("[0-9]*"):
        # The process may have ended in the meantime.
        with suppress(OSError):
            children.setdefault(parent_of(place.name, root), []).append(int(place.name))
    found, left = set[int](), [process or os.getpid()]
    while left:
        left += children.get(left.pop(), [])
        found.update(left)
    return found


def living_descendants() -> set[int]:
    """Reap ended children of this process; return the IDs of all descendants still running."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def processes_with(variable: str) -> set[int]:
    """Return IDs of other processes started with the environment `variable` (`NAME=value`)."""
    found = set[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        # The process may have ended, or belong to another user.
        with suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found - {os.getpid()}


def end_descendants(
    grace_s: float, *, variable: str | None = None, spared: int | None = None
) -> None:
    """End this process's descendants, and processes with the environment `variable` (`NAME=value`).

    SIGTERM goes first to direct children only, so that a launcher can end its own processes in
    order. When the children have ended or half of `grace_s` has passed, SIGTERM goes to all that
    remain. SIGKILL follows after `grace_s` seconds. The process with ID `spared` gets no signal.
    """

    def living() -> set[int]:
        return living_descendants().union(processes_with(variable) if variable else ()) - {spared}

    def is_child(process: int) -> bool:
        with suppress(OSError):
            return parent_of(process) == os.getpid()
        return False

    def signal_all(processes: set[int], number: signal.Signals) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    # Grid Engine kills a whole job if the `qrsh` by which `mpirun` reaches another node is killed.
    start_s, asked, had_children = time.monotonic(), set[int](), False
    while left := living():
        waited_s = time.monotonic() - start_s
        if waited_s > grace_s:
            signal_all(left, signal.SIGKILL)
        else:
            children = {process for process in left if is_child(process)}
            is_late = waited_s > grace_s / 2 or (had_children and not children)
            had_children |= bool(children)
            due = (left if is_late else children) - asked
            signal_all(due, signal.SIGTERM)
            asked |= due
        time.sleep(0.02)


def _prctl(what: int, value: int) -> None:
    # Imported here, since it would slow down commands that do not need it.
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    parent = os.getppid()
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request, so the kernel sends no signal.
        os.kill(os.getpid(), signal.SIGKILL)


def end_at_interrupt() -> None:
    """Make Ctrl-C end this process at once, even in a collective that Python cannot interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A block may be inherited from the process that forked this one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


if __name__ == "__main__":
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])
