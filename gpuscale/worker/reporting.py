"""The files by which a rank speaks to its launcher; nothing is parsed from its output."""

import faulthandler
import os
import re
import socket
import traceback

import msgspec

from gpuscale.encoding import to_json
from gpuscale.records import Failure, RankFailure
from gpuscale.run_directory import RunDirectory, write_atomically

_PROGRESS_BYTES = 64
# CUDA, NCCL and gloo tell by the text of an exception only.
_OF_THE_SYSTEM = re.compile(
    r"uncorrectable|ECC error|unspecified launch failure|hardware stack|illegal instruction"
    r"|no CUDA-capable device|busy or unavailable|CUDA driver|initialization error"
    r"|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError"
    r"|DistNetworkError|DistStoreError|Connection (?:reset|closed|refused|timed out)"
    r"|No route to host|Network is unreachable|Broken pipe|Stale file handle|Input/output error"
    r"|No space left on device|Disk quota exceeded|Read-only file system",
    re.IGNORECASE,
)


class RankFiles:
    """One rank's corner of the run's directory."""

    def __init__(self, directory: RunDirectory, rank: int) -> None:
        self._directory = directory
        self._rank = rank
        self._progress: int | None = None

    def announce(self, timeout_s: float) -> None:
        """Leave the process id, and have the interpreter write all stacks after `timeout_s`.

        The stacks are written by a thread without the interpreter's lock, so also from a rank
        that is stuck in a collective; ending the rank is the launcher's, after all have spoken.
        """
        write_atomically(self._directory.pid(self._rank), str(os.getpid()))
        # The file must stay open for as long as the process lives.
        self._stacks = self._directory.stacks(self._rank).open("w")
        faulthandler.dump_traceback_later(timeout_s, exit=False, file=self._stacks)

    def report(self, stage: str, done: int, total: int) -> None:
        """Tell how far the run is; rank 0 speaks for all."""
        if self._rank != 0:
            return
        if self._progress is None:
            self._progress = os.open(self._directory.progress, os.O_WRONLY | os.O_CREAT, 0o644)
        # In place, at one length: a new file for each window costs half a millisecond here and
        # more on a shared file system, and all ranks wait for it at the window's barrier.
        os.pwrite(self._progress, f"{stage}\t{done}\t{total}".ljust(_PROGRESS_BYTES).encode(), 0)

    def write_outcome(self, outcome: msgspec.Struct) -> None:
        """Leave what this rank measured."""
        faulthandler.cancel_dump_traceback_later()
        write_atomically(self._directory.outcome(self._rank), to_json(outcome))

    def write_failure(self, error: BaseException, *, lost_peer: bool) -> None:
        """Leave the traceback of what ended this rank."""
        summary = "".join(traceback.format_exception_only(error)).strip()
        message = summary.splitlines()[0] if summary else type(error).__name__
        failure = Failure(
            kind="system" if _OF_THE_SYSTEM.search(message) else "raised",
            message=message,
            rank=self._rank,
            host=socket.gethostname(),
            detail="".join(traceback.format_exception(error)),
        )
        write_atomically(
            self._directory.failure(self._rank),
            to_json(RankFailure(failure=failure, lost_peer=lost_peer)),
        )
