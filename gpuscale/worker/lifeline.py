"""How ranks end: with the process that started them, even killed with SIGKILL, and at Ctrl-C."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere a no-op)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died between the two calls: its death signal went unsent.
        os.kill(os.getpid(), signal.SIGKILL)


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, also inside a collective that Python cannot leave.

    The fork server holds the signal back, and what it forks inherits that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
