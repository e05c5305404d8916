"""The parent-death signal: no process of a run outlives the one that started it.

The file is also run by its path, as `python parent_death.py PARENT COMMAND …`: it becomes a command
that gets SIGTERM when that parent dies. `srun` and `mpirun` end all their processes at SIGTERM;
when pytest is killed with SIGKILL, nobody else would tell them. So it imports nothing of gpuscale.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def signal_at_parent_death(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when its parent dies (Linux; else a no-op)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    parent = os.getppid()
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died between the two calls: its death signal went unsent.
        os.kill(os.getpid(), signal.SIGKILL)


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, also inside a collective that Python cannot leave.

    The fork server holds the signal back, and what it forks inherits that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


if __name__ == "__main__":
    given_parent = int(sys.argv[1])
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() == given_parent:
        os.execvp(sys.argv[2], sys.argv[2:])
