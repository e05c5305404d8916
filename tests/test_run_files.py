"""The files that ranks leave in the folder of their run, and those that stay on their node."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from changing import replace
from hosts import within_limit
from measuring import REPOSITORY, write_case
from statements import known
from test_launch_keeper import HERE, LIMIT_S, run_directory

from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.orders import Keepers, Outcome
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.schedulers.placement import rank_variables

TALKATIVE = """
import os
import torch.distributed as dist

Case = Tiny
print("rank", os.environ["RANK"], "begins", flush=True)
"""
DYING_IN_GATHER = (
    TALKATIVE
    + """
real = dist.gather_object

def gather(own, everyone):
    if os.environ["RANK"] == "{rank}":
        print("last words", flush=True)
        os.kill(os.getpid(), 9)
    real(own, everyone)

dist.gather_object = gather
"""
)
# Rank 1 has handed its part over when it dies.
DYING_AFTER_GATHER = DYING_IN_GATHER.replace(
    "    if os.environ", "    real(own, everyone)\n    if os.environ"
).replace("    real(own, everyone)\n\n", "\n")
HANGING = """
import time

class Case(Tiny):
    def forward(self, model, inputs):
        time.sleep(600)
"""

NODE_EVIDENCE = f"node-{socket.gethostname()}.json"
LEFT_BY_RANKS = {"request.json", "progress", "outcomes.json", NODE_EVIDENCE}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files on the node of the keeper."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def keepers(scratch: Path) -> Iterator[Keepers]:
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch)}
    command = [sys.executable, "-P", "-m", "gpuscale.measure.launch.keeper", "local"]
    keepers = Keepers([*command, str(scratch), "preload"], HERE, variables, scratch)
    assert keepers.have_started(LIMIT_S)
    yield keepers
    keepers.close()


def prepared(folder: Path, *parts: str, ranks: int) -> RunDirectory:
    """Return the folder of a run with the request for this number of ranks on this node."""
    directory = run_directory(folder, write_case(folder, *parts))
    directory.hosts.unlink()
    directory.request.write(replace(directory.request.read(), gpus=ranks))
    return directory


def perform(
    keepers: Keepers, directory: RunDirectory, ranks: int, *, timeout_s: float = LIMIT_S
) -> Outcome:
    directory.request.write(replace(directory.request.read(), timeout_s=timeout_s))
    assignment = {0: tuple((rank, rank) for rank in range(ranks))}
    variables = {**rank_variables(ranks, "127.0.0.1"), "LOCAL_WORLD_SIZE": str(ranks)}
    return keepers.perform("rank", directory, assignment, timeout_s=timeout_s, variables=variables)


def names_in(directory: RunDirectory) -> set[str]:
    return {path.name for path in directory.path.iterdir()}


def left_on_node(scratch: Path) -> list[str]:
    return [path.name for path in scratch.glob("gpuscale-keeper-*/**/rank-*")]


def test_ranks_that_end_well_leave_one_file_together(
    tmp_path: Path, scratch: Path, keepers: Keepers
) -> None:
    directory = prepared(tmp_path, TALKATIVE, ranks=8)
    assert perform(keepers, directory, 8).exit_codes == dict.fromkeys(range(8), 0)
    assert names_in(directory) == LEFT_BY_RANKS
    reports = [outcome.report for outcome in directory.outcomes.read()]
    assert [report.rank for report in reports] == [*range(8)]
    assert len({report.parameter_digest for report in reports}) == 1
    assert within_limit(lambda: left_on_node(scratch) == [])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dying", [DYING_IN_GATHER, DYING_AFTER_GATHER], ids=["in", "after"])
def test_a_rank_that_dies_after_its_windows_is_the_cause_and_its_output_is_shown(
    tmp_path: Path, scratch: Path, keepers: Keepers, dying: str, rank: int
) -> None:
    directory = prepared(tmp_path, dying.format(rank=rank), ranks=2)
    codes = perform(keepers, directory, 2).exit_codes
    failure = known(failure_of(directory.request.read(), directory, codes))
    assert (failure.kind, failure.rank) == ("killed", rank)
    assert failure.detail.splitlines() == [f"rank {rank} begins", "last words"]
    # The other rank ended because of it.
    assert f"rank-{1 - rank}.log" not in names_in(directory)
    assert within_limit(lambda: left_on_node(scratch) == [])


def test_at_a_timeout_every_rank_leaves_its_stack(tmp_path: Path, keepers: Keepers) -> None:
    # The longer where a busy machine has not come to the hang by then.
    for timeout_s in (5.0, 60.0):
        (folder := tmp_path / str(timeout_s)).mkdir()
        directory = prepared(folder, HANGING, ranks=2)
        assert perform(keepers, directory, 2, timeout_s=timeout_s).timed_out
        stacks = [path.read_text() for rank in (0, 1) if (path := directory.stacks(rank)).exists()]
        if all("in forward" in stack for stack in stacks):
            break
    assert ["in forward" in stack for stack in stacks] == [True, True]
    failure = known(failure_of(directory.request.read(), directory, {}, timed_out=True))
    # Of gpuscale's own frames only the innermost one says something.
    frames = [line for line in failure.detail.splitlines() if f'"{REPOSITORY}/gpuscale/' in line]
    assert len(frames) == 2


def test_a_run_after_one_that_failed_has_no_files_of_it(tmp_path: Path, keepers: Keepers) -> None:
    failing = prepared(tmp_path, DYING_IN_GATHER.format(rank=1), ranks=2)
    assert perform(keepers, failing, 2).exit_codes[1] == -9
    (tmp_path / "next").mkdir()
    directory = prepared(tmp_path / "next", TALKATIVE, ranks=2)
    assert perform(keepers, directory, 2).exit_codes == {0: 0, 1: 0}
    assert names_in(directory) == LEFT_BY_RANKS
