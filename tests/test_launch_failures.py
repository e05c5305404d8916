"""The cause of a failed run among all its errors and last lines."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from commands import request_for
from measuring import run_pytest, write_case
from statements import known
from test_overhead import request_for_cpu

from gpuscale.base.errors import CaseError, GpuscaleError, InvalidTrainingError
from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.keeper_orders import Outcome
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker.entry import RankFiles
from gpuscale.measure.worker.output import COMMAND_SOURCE, Line, last_words
from gpuscale.measure.worker.user_code import _load_module, traceback_text
from gpuscale.records import Failure
from gpuscale.records.request import RankFailure

# As torch puts it together (C10D_NCCL_CHECK in torch/csrc/distributed/c10d/NCCLUtils.hpp).
OF_NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, unhandled cuda "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n{}\nLast error:\n{}"
)
ABORTED, FAULTED = -signal.SIGABRT, -signal.SIGSEGV
STARTED = [(rank, f"n{1 + rank // 2}") for rank in range(4)]


def left_by(folder: Path, reports: dict[int, bool]) -> RunDirectory:
    """Return the folder of ranks that raised, in this order; True for each that had lost a peer."""
    directory = RunDirectory(path=folder)
    for position, (rank, lost_peer) in enumerate(reports.items()):
        message = "DistBackendError: NCCL error" if lost_peer else "ValueError: no such batch"
        said = f"rank {rank} raised {message}"
        failure = Failure(kind="raised", message=said, rank=rank, detail="its traceback")
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
    outcome = Outcome(exit_codes)
    failure = known(failure_of(request_for_cpu(), left_by(tmp_path, reports), outcome))
    assert failure.message == cause


@pytest.mark.parametrize(
    ("exits", "reports", "cause"),
    [
        # Who only lost another rank tells nothing of why.
        ({0: 1, 1: 1, 2: 1, 3: 1}, {0: True, 2: False}, "ValueError: no such batch"),
        ({0: 1, 1: 0, 2: 0, 3: 0}, {0: True}, "DistBackendError: NCCL error"),
        # What watched the command of rank 2 was killed before it could tell.
        ({0: 1, 1: 1, 2: -9, 3: 1}, {0: True}, "watches the command was killed by SIGKILL on n2"),
        # Somebody cancelled the job.
        ({0: 0, 1: 0, 2: 143, 3: 143}, {}, "the command was ended by SIGTERM on n2: the job was"),
        # Slurm ended what ran on the first node, because the second one had failed.
        ({0: 143, 1: 143}, {}, "ranks 2, 3 ended without a word on n2"),
        # Nobody on n2 lived to tell anything.
        ({0: 1, 1: 1}, {0: True}, "ranks 2, 3 ended without a word on n2"),
    ],
)
def test_the_cause_of_a_commands_end_is_none_of_those_who_lost_a_peer(
    tmp_path: Path, exits: dict[int, int], reports: dict[int, bool], cause: str
) -> None:
    directory = left_by(tmp_path, reports)
    directory.launched.write(STARTED)
    asked = request_for(tmp_path, "", gpus=4, nodes=2)
    failure = known(failure_of(asked, directory, Outcome(exits)))
    assert cause in failure.message


SLURM_LOST = "srun: error: Node failure on n2\nsrun: Job step aborted: Waiting up to 4 seconds"
OPEN_MPI_LOST = (
    "  HNP daemon   : [[1893,0],0] on node login\n  Remote daemon: [[1893,0],2] on node n2\n"
)


@pytest.mark.parametrize(
    ("said", "host", "places"),
    [
        (SLURM_LOST, "n2", "n2"),
        (OPEN_MPI_LOST, "n2", "n2"),
        # Open MPI has two messages, and only one of them says where.
        ("An ORTE daemon has unexpectedly failed after launch", None, "n1, n2"),
    ],
)
def test_of_hosts_without_a_word_only_one_that_the_launcher_lost_is_blamed(
    tmp_path: Path, said: str, host: str | None, places: str
) -> None:
    directory = left_by(tmp_path, {})
    directory.launched.write(STARTED)
    directory.launcher_log.write_text(said)
    request = request_for(tmp_path, "", gpus=4, nodes=2)
    failure = known(failure_of(request, directory, Outcome(), launcher="mpirun"))
    assert failure.host == host
    assert f"without a word on {places}:" in failure.message


def test_of_unfinished_ranks_the_one_that_told_steps_speaks(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    for rank, steps, printed in ((1, 0.0, ""), (0, 40.0, "loading")):
        said = f"after step {steps:g}"
        failure = Failure(kind="timeout", message=said, rank=rank, host="n1", detail=printed)
        report = RankFailure(failure=failure, lost_peer=False, steps_reported=steps)
        directory.failure(rank).write(report)
    asked = request_for(tmp_path, "", gpus=2, nodes=2)
    found = known(failure_of(asked, directory, Outcome({1: 1, 0: 1})))
    assert (found.message, found.rank, found.host) == ("after step 40", None, None)
    in_order = ("rank 0 on n1 printed last:\nloading", "rank 1 on n1 printed last:\n(nothing)")
    assert found.detail == "\n\n".join(in_order)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("system", RuntimeError("CUDA error: uncorrectable ECC error encountered")),
        ("system", RuntimeError(OF_NCCL.format("ncclRemoteError: A call failed", ""))),
        ("raised", RuntimeError(OF_NCCL.format("ncclInvalidUsage: Duplicate GPU", ""))),
        ("system", RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer")),
        ("system", OSError(28, "No space left on device")),
        ("system", OSError("Stale file handle")),
        ("raised", ValueError("no such batch")),
        ("raised", CaseError("no such size")),
        # A data root on a disk that fails, which another node may not have.
        ("system", CaseError("no data there ([Errno 5] Input/output error); put them")),
        ("invalid", InvalidTrainingError("a parameter of rank 0 is not finite")),
        ("out_of_memory", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
        ("out_of_memory", RuntimeError("could not create a primitive")),
        ("raised", RuntimeError("could not create a primitive descriptor for a convolution")),
        ("out_of_memory", RuntimeError("DefaultCPUAllocator: can't allocate memory")),
        ("out_of_memory", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")),
        ("out_of_memory", MemoryError()),
    ],
)
def test_what_ended_a_rank_has_its_kind_and_a_traceback_only_where_it_was_not_expected(
    tmp_path: Path, kind: str, error: Exception
) -> None:
    directory = RunDirectory(path=tmp_path)
    RankFiles(directory, 0).leave_failure(error, 8, lost_peer=False)
    failure = known(failure_of(request_for_cpu(), directory, Outcome({0: 1})))
    assert failure.kind == kind
    assert bool(failure.detail) is not isinstance(error, GpuscaleError)
    assert " ".join(str(error).splitlines()[:1]) in failure.message


def test_without_a_users_line_the_place_in_gpuscale_and_all_text_are_shown(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def model(:\n")
    with pytest.raises(SyntaxError) as caught:
        _load_module("broken_case", tmp_path / "broken.py")
    error = caught.value
    # This test's own frame would count as the user's.
    shown = traceback_text(error.with_traceback(known(error.__traceback__).tb_next))
    place, *text = shown.splitlines()
    assert re.fullmatch(r"in a call from gpuscale/measure/worker/user_code\.py:\d+:", place)
    assert text[0] == f'File "{tmp_path / "broken.py"}", line 1'
    assert text[-1].startswith("SyntaxError: ")


def test_a_method_with_other_parameters_is_shown_as_gpuscale_calls_it(tmp_path: Path) -> None:
    other = "\nclass Case(Tiny):\n    def optimizer(self, model):\n        return None\n"
    write_case(tmp_path, other)
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu", "--run-seconds", "0.05")
    assert "\ngpuscale calls optimizer(model, gpus)\n" in session.output
    assert "gpuscale/measure/worker" not in session.output


NO_DATA = "ValueError: no data"
OWN = f"""\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    raise ValueError("no data")
{NO_DATA}"""
OF_TORCH = "\n".join(f"[rank1]: {line}" for line in OWN.splitlines())
CLOSED = "RuntimeError: [gloo/pair.cc:534] Connection closed"
LOST = OWN.replace(NO_DATA, CLOSED)
STARTER = OWN.replace(NO_DATA, "x.errors.ChildFailedError: ")
SUMMARY = """\
Failures:
[1]:
  rank      : {other} (local_rank: {other})
  exitcode  : {other_code} (pid: 7)
Root Cause (first observed failure):
[0]:
  rank      : {first} (local_rank: {first})
  exitcode  : {code} (pid: 8)"""


def summary(first: int, code: int, other_code: int = -15) -> str:
    return SUMMARY.format(first=first, code=code, other=1 - first, other_code=other_code)


Printed = dict[str, list[Line]]


def printed(**texts: str) -> Printed:
    """Lines of sources, in the order in which they came; `rank_1` is rank 1."""
    sources = {"command": COMMAND_SOURCE, "rank_0": "rank 0", "rank_1": "rank 1"}
    return {
        sources[name]: [Line(sources[name], line, at_s) for line in text.splitlines()]
        for at_s, (name, text) in enumerate(texts.items())
    }


def of_ranks(command: str) -> Printed:
    """Lines of two ranks, the first of which lost the second by its exception."""
    return printed(rank_0=LOST, rank_1=OF_TORCH, command=command)


@pytest.mark.parametrize(
    ("lines", "exit_code", "source", "exception", "code"),
    [
        # A script by itself, and one whose starter raises after it.
        (printed(command=OWN), 1, COMMAND_SOURCE, NO_DATA, None),
        (printed(command=f"{OWN}\n{STARTER}"), 1, COMMAND_SOURCE, NO_DATA, None),
        # torchrun, whose summary names the rank; without it the rank with a cause of its own.
        (of_ranks(f"{STARTER}\n{summary(1, 1)}"), 1, "rank 1", NO_DATA, 1),
        (of_ranks(STARTER), 1, "rank 1", NO_DATA, None),
        # Both at once, and the summary names the wrong one first.
        (of_ranks(summary(0, 1, 1)), 1, "rank 1", NO_DATA, 1),
        # Killed without a word, while the other one logged something that it survived.
        (printed(rank_0=OWN, command=summary(1, -9)), 1, "rank 1", None, -9),
        (printed(rank_0=LOST, command=summary(0, 1, -9)), 1, "rank 1", None, -9),
        (printed(rank_0=LOST, rank_1="I give up", command=summary(1, 3)), 1, "rank 1", None, 3),
        # What a rank survived, before it was killed, is not why it ended.
        (printed(rank_1=OWN, command=summary(1, -9)), 1, "rank 1", None, -9),
        # A signal ended the command, whatever it had survived before.
        (printed(command=OWN), -9, COMMAND_SOURCE, None, -9),
        # Last lines of a rank come between those of torchrun, by the shell that reads both.
        (
            printed(command=f"a{summary(1, -9)}".replace(")\n ", ")\nstep\nste ")),
            0,
            "rank 1",
            None,
            -9,
        ),
        # All ranks lost others: the first one of the summary.
        (printed(rank_0=LOST, rank_1=LOST, command=summary(1, 1, 1)), 1, "rank 1", CLOSED, 1),
        # A shell prints again what the ranks printed.
        (printed(rank_1=OF_TORCH, command=OF_TORCH), 1, "rank 1", NO_DATA, None),
    ],
)
def test_the_process_that_ended_a_command_is_found(
    lines: Printed, exit_code: int, source: str, exception: str | None, code: int | None
) -> None:
    found = known(last_words(lines, exit_code))
    assert (found.source, found.exception, found.exit_code) == (source, exception, code)


def test_a_long_traceback_is_shown_from_its_beginning_and_an_endless_one_cut() -> None:
    def shown(frames: int) -> tuple[str, ...]:
        head, *_, last = OWN.splitlines()
        text = "\n".join(["before", head, *(["  File"] * frames), last])
        found = known(last_words(printed(command=text), 1))
        return found.lines

    assert shown(1)[0] == "before"
    assert shown(60)[0].startswith("Traceback")
    assert len(shown(300)) == 100
