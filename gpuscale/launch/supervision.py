"""Ending ranks whose time is up."""

import contextlib
import os
import signal
import threading
from types import TracebackType

from gpuscale.records import RunRequest
from gpuscale.run_directory import RunDirectory

_GRACE_S = 1.0
_AGAIN_S = 0.5


class Supervisor:
    """Kills the ranks of a run that outlives its timeout, after they have written their stacks.

    SIGKILL and not SIGTERM: a stopped process, or one in a driver call, never sees the latter.
    """

    def __init__(self, directory: RunDirectory, request: RunRequest) -> None:
        self._directory = directory
        self._ranks = range(request.processes)
        self._timeout_s = request.timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.timed_out = False

    def __enter__(self) -> "Supervisor":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._ended.wait(self._timeout_s + _GRACE_S):
            return
        self.timed_out = True
        # Again and again: a rank may have been too slow to leave its process id the first time.
        while True:
            self._kill_ranks()
            if self._ended.wait(_AGAIN_S):
                return

    def _kill_ranks(self) -> None:
        for rank in self._ranks:
            # A rank that has not started or has ended needs no killing.
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(self._directory.pid(rank).read_text()), signal.SIGKILL)
