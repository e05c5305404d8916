"""Files that ranks leave in the folder of their run or on their node, and folders for a while."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from changing import replace
from hosts import within_limit
from measuring import run_pytest, start_pytest, write_case
from statements import known
from test_launch_keeper import HERE, LIMIT_S, run_directory

from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.keeper_orders import Keepers, Outcome
from gpuscale.measure.run_directory import RunDirectory, scratch_folder
from gpuscale.measure.schedulers.placement import ThisNode, rank_variables

TALKATIVE = """
import os
import torch.distributed as dist

Case = Tiny
print("rank", os.environ["RANK"], "begins", flush=True)
"""
# It dies at once, or when it has handed its part over.
DYING = """
real = dist.gather_object

def gather(own, everyone):
    if "{when}" == "after":
        real(own, everyone)
    if os.environ["RANK"] == "{rank}":
        print("last words", flush=True)
        os.kill(os.getpid(), 9)
    if "{when}" == "in":
        real(own, everyone)

dist.gather_object = gather
"""
NODE_EVIDENCE = f"node-{socket.gethostname()}.json"
LEFT_BY_RANKS = {"request.json", "progress", "outcomes.json", NODE_EVIDENCE}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def keepers(scratch: Path) -> Iterator[Keepers]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TMPDIR", str(scratch))
        keepers = Keepers(ThisNode(), HERE, scratch, preloads=True)
    assert keepers.is_usable
    yield keepers
    keepers.close()


def prepared(folder: Path, *parts: str, ranks: int) -> RunDirectory:
    directory = run_directory(folder, write_case(folder, *parts))
    directory.hosts.unlink()
    directory.request.write(replace(directory.request.read(), gpus=ranks))
    return directory


def perform(keepers: Keepers, directory: RunDirectory, ranks: int) -> Outcome:
    assignment = {0: tuple((rank, rank) for rank in range(ranks))}
    variables = {**rank_variables(ranks, "127.0.0.1"), "LOCAL_WORLD_SIZE": str(ranks)}
    return keepers.perform("rank", directory, assignment, timeout_s=LIMIT_S, variables=variables)


def names_in(directory: RunDirectory) -> set[str]:
    return {path.name for path in directory.path.iterdir()}


def left_on_node(scratch: Path) -> list[str]:
    return [path.name for path in scratch.glob("gpuscale-keeper-*/**/rank-*")]


def test_ranks_that_end_well_share_a_file(tmp_path: Path, scratch: Path, keepers: Keepers) -> None:
    directory = prepared(tmp_path, TALKATIVE, ranks=8)
    assert perform(keepers, directory, 8).exit_codes == dict.fromkeys(range(8), 0)
    assert names_in(directory) == LEFT_BY_RANKS
    reports = [outcome.report for outcome in directory.outcomes.read()]
    assert [report.rank for report in reports] == [*range(8)]
    assert len({report.parameter_digest for report in reports}) == 1
    assert within_limit(lambda: left_on_node(scratch) == [])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["in", "after"])
def test_a_rank_that_dies_after_its_windows_is_the_cause_and_its_output_is_shown(
    tmp_path: Path, scratch: Path, keepers: Keepers, when: str, rank: int
) -> None:
    directory = prepared(tmp_path, TALKATIVE, DYING.format(when=when, rank=rank), ranks=2)
    outcome = perform(keepers, directory, 2)
    failure = known(failure_of(directory.request.read(), directory, outcome))
    assert (failure.kind, failure.rank) == ("killed", rank)
    assert failure.detail.splitlines() == [f"rank {rank} begins", "last words"]
    assert f"rank-{1 - rank}.log" not in names_in(directory)
    assert within_limit(lambda: left_on_node(scratch) == [])


def test_a_run_after_one_that_failed_has_no_files_of_it(tmp_path: Path, keepers: Keepers) -> None:
    failing = prepared(tmp_path, TALKATIVE, DYING.format(when="in", rank=1), ranks=2)
    assert perform(keepers, failing, 2).exit_codes[1] == -9
    (tmp_path / "next").mkdir()
    directory = prepared(tmp_path / "next", TALKATIVE, ranks=2)
    assert perform(keepers, directory, 2).exit_codes == {0: 0, 1: 0}
    assert names_in(directory) == LEFT_BY_RANKS


HOLDS = """
import sys, time
from pathlib import Path
from gpuscale.measure.run_directory import scratch_folder

with scratch_folder(".run-", within=Path(sys.argv[1])) as folder:
    (folder / "request").write_text("")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_killed_process_leaves_a_folder_that_the_next_one_removes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        with scratch_folder(".run-", within=tmp_path):
            assert (held / "request").exists()
    finally:
        process.kill()
        process.communicate()
    assert (held / "request").exists()
    with scratch_folder(".run-", within=tmp_path):
        assert not held.exists()


def test_killed_failed_and_loading_runs_leave_nothing(tmp_path: Path, short_folder: Path) -> None:
    raises = "class Case(Tiny):\n    def loss(self, output, target):\n        raise OSError"
    for name, case in (("lasting", "Case = Tiny"), ("failing", raises), ("loading", "Case = Tiny")):
        (tmp_path / name).mkdir()
        write_case(tmp_path / name, case)
    temporary = {"TMPDIR": str(short_folder)}
    options = ("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds")
    killed = start_pytest(tmp_path / "lasting", *options, "60", **temporary)
    while not [*short_folder.glob("gpuscale-run-*/progress")]:
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    run_pytest(tmp_path / "failing", *options, "0.5", **temporary).ended(1)
    loaders = ("--data", "loader", "--data-workers", "1")
    run_pytest(tmp_path / "loading", *options, "0.5", *loaders, **temporary).ended()
    # torch makes an empty folder for what it compiles, whatever is run.
    left = [path for path in short_folder.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []
