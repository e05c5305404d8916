"""Which of all that went wrong in a run is its cause."""

import os
import signal
from pathlib import Path

import pytest
from test_overhead import request_for_cpu

from gpuscale.launch.failures import crash_failure
from gpuscale.records import Failure, RankFailure
from gpuscale.run_directory import RunDirectory

ABORTED, FAULTED = -signal.SIGABRT, -signal.SIGSEGV


def left_by(folder: Path, reports: dict[int, bool]) -> RunDirectory:
    """What ranks left that raised, in that order: of each, whether it had lost a peer."""
    directory = RunDirectory(path=folder)
    for position, (rank, lost_peer) in enumerate(reports.items()):
        message = "DistBackendError: NCCL error" if lost_peer else "ValueError: no such batch"
        failure = Failure(kind="raised", message=message, rank=rank)
        file = directory.failure(rank)
        file.write(RankFailure(failure=failure, lost_peer=lost_peer))
        os.utime(file.path, (position, position))
    return directory


@pytest.mark.parametrize(
    ("exit_codes", "reports", "cause"),
    [
        # A rank raised, the others' watchdogs aborted them.
        ({1: ABORTED, 0: 1}, {0: False}, "rank 0 raised ValueError: no such batch"),
        # A rank raised and aborted while it was leaving.
        ({0: ABORTED}, {0: False}, "rank 0 raised ValueError: no such batch"),
        # A rank aborted, and the others say that they lost it.
        ({1: 1, 0: ABORTED}, {1: True}, "rank 0 was killed by SIGABRT"),
        ({0: ABORTED}, {}, "rank 0 was killed by SIGABRT"),
        # Any other signal is nobody's consequence.
        ({1: ABORTED, 0: FAULTED}, {1: True}, "rank 0 was killed by SIGSEGV"),
        ({1: 1, 0: FAULTED}, {1: False}, "rank 0 was killed by SIGSEGV"),
        ({1: 1}, {1: True}, "rank 1 raised DistBackendError: NCCL error"),
    ],
)
def test_an_abort_is_the_cause_only_where_no_rank_failed_by_itself(
    tmp_path: Path, exit_codes: dict[int, int], reports: dict[int, bool], cause: str
) -> None:
    failure = crash_failure(request_for_cpu(), left_by(tmp_path, reports), exit_codes)
    assert failure.message == cause
