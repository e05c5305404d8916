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
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch)}
    command = [sys.executable, "-P", "-m", "gpuscale.measure.launch.keeper", "local"]
    keepers = Keepers([*command, str(scratch), "preload"], HERE, variables, scratch)
    assert keepers.have_started(LIMIT_S)
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
    codes = perform(keepers, directory, 2).exit_codes
    failure = known(failure_of(directory.request.read(), directory, codes))
    assert (failure.kind, failure.rank) == ("killed", rank)
    assert failure.detail.splitlines() == [f"rank {rank} begins", "last words"]
    # The other rank ended because of it.
    assert f"rank-{1 - rank}.log" not in names_in(directory)
    assert within_limit(lambda: left_on_node(scratch) == [])


def test_a_run_after_one_that_failed_has_no_files_of_it(tmp_path: Path, keepers: Keepers) -> None:
    failing = prepared(tmp_path, TALKATIVE, DYING.format(when="in", rank=1), ranks=2)
    assert perform(keepers, failing, 2).exit_codes[1] == -9
    (tmp_path / "next").mkdir()
    directory = prepared(tmp_path / "next", TALKATIVE, ranks=2)
    assert perform(keepers, directory, 2).exit_codes == {0: 0, 1: 0}
    assert names_in(directory) == LEFT_BY_RANKS
