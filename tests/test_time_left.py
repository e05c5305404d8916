"""What a session makes of its runs so far: the time that is left, and what would fail again."""

from collections.abc import Sequence

import pytest
from builders import run
from changing import replace

from gpuscale.plugin.run_maker import broken_by, left_text, seconds_left
from gpuscale.records import EntryKey, Failure, Run


def lasting(gpus: int, wall_s: float) -> Run:
    return replace(run(gpus, 0.1), wall_s=wall_s)


def failed(
    gpus: int, kind: str = "raised", message: str = "IndexError: 8", *, index: int = 1
) -> Run:
    failure = Failure(kind=kind, message=message)  # type: ignore[arg-type] # a kind each
    return replace(run(gpus, None), failure=failure, index=index, wall_s=1.0)


def lost(gpus: int, *, index: int) -> Run:
    return failed(gpus, message="rank 0 raised OSError: [Errno 11] try again", index=index)


def row(gpus: int) -> EntryKey:
    return run(gpus, 0.1).key


def test_rows_take_what_they_took_and_new_ones_the_mean_of_the_others() -> None:
    runs = [lasting(1, 10.0), lasting(1, 14.0), lasting(2, 30.0), failed(4)]
    assert seconds_left([row(1), row(2), row(2)], runs) == 12 + 30 + 30
    assert seconds_left([row(4)], runs) == 21
    assert seconds_left([], runs) == 0
    assert seconds_left([row(1)], [failed(1)]) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.4, ""),
        (52.3, ", 52 s left"),
        (80.0, ", 80 s left"),
        (240.0, ", 4 min left"),
        (9000.0, ", 2 h left"),
    ],
)
def test_what_is_left_is_said_roughly(seconds: float | None, text: str) -> None:
    assert left_text(seconds, at_most=False) == text


@pytest.mark.parametrize(
    ("runs", "broken"),
    [
        ([], ()),
        ([failed(1)], (1, 2, 4)),
        ([run(1, 0.1), failed(4)], (4,)),
        ([failed(1), run(1, 0.1)], ()),
        ([failed(1, "out_of_memory"), failed(2, "killed"), failed(4, "timeout")], ()),
        ([failed(2, message="rank 0 raised DistBackendError: NCCL error")], ()),
        ([failed(1, message="CUDA error: an illegal memory access")], ()),
        ([failed(1, message="CUDA error: device-side assert triggered")], (1, 2, 4)),
        ([failed(2, "unread", "no format knows lines like 'NCCL 3'")], (1, 2, 4)),
        ([lost(1, index=1), lost(2, index=1), lost(4, index=1)], ()),
        ([lost(1, index=1), lost(2, index=1), lost(1, index=2)], (1, 2, 4)),
        ([run(1, 0.1), lost(2, index=1), lost(2, index=2)], (2,)),
        ([failed(1, message="raised requests.exceptions.ConnectionError: x")], ()),
        ([failed(1, message="raised EOFError: Ran out of input")], ()),
        ([failed(1, message="DataLoader worker (pid 7) exited unexpectedly")], ()),
        ([failed(1, message="raised TypeError: Caught TypeError in DataLoader worker")], (1, 2, 4)),
    ],
    ids=[
        "nothing was run",
        "its first run raised",
        "on so many GPUs only",
        "it has given a number",
        "by memory, a signal or time",
        "a peer was lost",
        "a device failed",
        "a wrong index on a GPU",
        "lines that no format knows",
        "files or connections in one round",
        "files or connections in two rounds",
        "files on so many GPUs only",
        "an error of another library",
        "a file that was cut short",
        "a loader that was killed",
        "a loader met a bug",
    ],
)
def test_a_faulty_case_gets_no_further_runs(runs: Sequence[Run], broken: tuple[int, ...]) -> None:
    assert tuple(gpus for gpus in (1, 2, 4) if broken_by(row(gpus), runs)) == broken


@pytest.mark.parametrize(
    ("last", "is_broken"),
    [
        ("KeyError: 'lr'", True),
        ("NCCL error", False),
        ("OSError: [Errno 5] Input/output error", False),
        ("curl: (56) Connection died", False),
        ("python: can't open file 'trian.py': [Errno 2] No such file or directory", True),
    ],
)
def test_of_a_command_its_last_lines_tell_whose_fault_it_was(last: str, is_broken: bool) -> None:
    made = failed(1, message="the command ended with exit code 1")
    assert made.failure is not None
    configuration = replace(made.configuration, strategy="command", command="train")
    made = replace(
        made, configuration=configuration, failure=replace(made.failure, detail=f"step 1\n{last}")
    )
    assert (broken_by(made.key, [made]) is not None) is is_broken
