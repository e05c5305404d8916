"""Commands that start ranks by themselves, across the nodes of a real Slurm and a real Open MPI."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import LIMIT_S, Cluster, Host, processes_in, within_limit
from measuring import pytest_command
from nccl_speaks import SAID, SPEAK
from slurm_cluster import TWO_NODES, slurm_cluster
from test_launch_mpirun import hosts, run_on

from gpuscale.records import Run
from gpuscale.store import read_results

pytestmark = pytest.mark.scheduler
__all__ = ["hosts"]

OPTIONS = ("--runs", "1", "--device", "cpu", "--run-seconds", "0.5", "--oversubscribe")
INTO_FILE = ("--results", "r.jsonl")
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--exclusive")
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes={nodes}"),
    *("--nproc-per-node={gpus_per_node}", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint={master_addr}:{master_port}", "train.py"),
)
ON_EACH_NODE = ("--launch", "per-node")
ONCE = ("--launch", "once")
SRUN = (
    *("srun", "--nodes={nodes}", "--nodelist={hosts}", "--ntasks-per-node=1"),
    "--kill-on-bad-exit=1",
)
# As after the first barrier of a training. A fault strikes on the last rank, which is on a node
# that did not start the job, when all have reported steps.
TRAIN = """
import os, signal, socket, sys, time
from gpuscale import report

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
open(f"host-{{rank}}", "w").write(socket.gethostname())
# A process that no task of a scheduler is the parent of.
os.system("setsid sleep 611 >/dev/null 2>&1 &")
while not all(os.path.exists(f"host-{{other}}") for other in range(ranks)):
    time.sleep(0.05)
with report(samples=8 * ranks) as step_done:
    for step in range(10**6):
        time.sleep(0.02)
        step_done()
        if step == 20 and rank == ranks - 1:
            {fault}
"""
HEALTHY = SPEAK + "speak(*LINES)\n" + TRAIN.format(fault="pass")
KILLED = TRAIN.format(fault="os.kill(os.getpid(), 9)")
ALL_HANG = TRAIN.replace("if step == 20 and rank == ranks - 1", "if step == 20").format(
    fault="signal.signal(15, signal.SIG_IGN); print('batch 21 does not come'); time.sleep(600)"
)
CASE = """
import sys
import pytest
from gpuscale import CommandCase

class Train(CommandCase):
    command = {command!r}
    launch = {launch!r}

@pytest.mark.gpuscale(case=Train)
def test_train(scaling):
    scaling()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(TWO_NODES) as cluster:
        yield cluster


def start(
    cluster: Cluster, folder: Path, *words: str, script: str = HEALTHY
) -> "subprocess.Popen[bytes]":
    """`gpuscale run` in an allocation of both nodes; its output goes to `log` in the folder."""
    (folder / "train.py").write_text(script)
    kept = () if "--resume" in words else INTO_FILE
    command = (sys.executable, "-m", "gpuscale", "run", "--launcher", "slurm", *OPTIONS, *kept)
    scratch = cluster.directory / "scratch"
    scratch.mkdir(exist_ok=True)
    return cluster.start(
        *(*ALLOCATE, *command, *words),
        folder=folder,
        log=folder / "log",
        environment={"TMPDIR": str(scratch)},
    )


def run(cluster: Cluster, folder: Path, *words: str, script: str = HEALTHY) -> tuple[int, str]:
    """The exit code and output of such a run, after which nothing is left."""
    code = start(cluster, folder, *words, script=script).wait(LIMIT_S)
    assert processes_in(folder) == []
    assert not list((cluster.directory / "scratch").glob("gpuscale-*"))
    assert not list(folder.glob(".run-*"))
    return code, (folder / "log").read_text()


def runs_in(folder: Path) -> tuple[Run, ...]:
    return read_results(folder / "r.jsonl").runs


LAUNCHES = pytest.mark.parametrize(
    "words", [("--", *TORCHRUN), (*ONCE, "--", *SRUN, *TORCHRUN)], ids=["per-node", "once"]
)


@LAUNCHES
def test_a_job_that_starts_its_ranks_is_measured_as_it_is(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    code, said = run(cluster, tmp_path, "--gpus", "1,4", *words)
    assert code == 0, said
    first, fourth = runs_in(tmp_path)
    assert first.is_valid
    assert fourth.is_valid
    assert fourth.batch_per_gpu == 8
    # Each rank where it really ran: torchrun numbers the nodes as it likes.
    hosts = [(tmp_path / f"host-{rank}").read_text() for rank in range(4)]
    assert sorted(hosts) == ["n1", "n1", "n2", "n2"]
    assert [rank.host for rank in fourth.ranks] == hosts
    assert [node.host for node in fourth.nodes] == ["n1", "n2"]
    assert [node.connections for node in fourth.nodes] == [SAID, SAID]
    # The second start measures nothing again.
    code, said = run(cluster, tmp_path, "--resume", "r.jsonl", "--gpus", "1,4", *words)
    assert code == 0, said
    assert len(runs_in(tmp_path)) == 2


@LAUNCHES
def test_a_rank_killed_on_the_other_node_is_named(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    asked = ("--gpus", "4", "--run-seconds", "100")
    code, said = run(cluster, tmp_path, *asked, *words, script=KILLED)
    assert code == 1, said
    failure = runs_in(tmp_path)[0].failure
    assert failure is not None
    assert (failure.kind, failure.rank) == ("killed", 3), failure
    assert "rank 3 was killed by SIGKILL" in failure.message
    # A script's own ranks may be anywhere.
    where = None if "once" in words else (tmp_path / "host-3").read_text()
    assert failure.host == where


@LAUNCHES
def test_a_hang_ends_at_the_timeout_on_all_nodes(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    asked = ("--gpus", "4", "--timeout", "40", "--run-seconds", "14")
    code, said = run(cluster, tmp_path, *asked, *words, script=ALL_HANG)
    assert code == 1, said
    failure = runs_in(tmp_path)[0].failure
    assert failure is not None
    assert (failure.kind, failure.rank) == ("timeout", None)
    assert "no step was told in the last" in failure.message
    assert "batch 21 does not come" in failure.detail


def test_a_case_in_a_file_says_how_it_is_launched(cluster: Cluster, tmp_path: Path) -> None:
    command = " ".join((*SRUN, *TORCHRUN))
    (tmp_path / "test_train.py").write_text(CASE.format(command=command, launch="once"))
    (tmp_path / "train.py").write_text(HEALTHY)
    session = pytest_command("--gpus", "4", "--launcher", "slurm", *OPTIONS, *INTO_FILE)
    done = cluster.run(*ALLOCATE, *session, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert runs_in(tmp_path)[0].is_valid


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Each node would start all ranks, in a world of its own.
        (("--gpus", "4", "--", *TORCHRUN[:3], "--nproc-per-node={gpus}", "train.py"), "4 ranks in"),
        (("--gpus", "1,4", "--", *TORCHRUN[:3], "train.py"), "write {gpus_per_node} where"),
        (("--gpus", "4", "--", "srun", "python", "train.py"), "give the bare script, or --launch"),
    ],
)
def test_a_command_that_would_start_other_ranks_is_refused(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    code, shown = run(cluster, tmp_path, *words)
    assert code != 0
    assert said in " ".join(shown.split())


@pytest.mark.parametrize("launch", ["per-node", "once"])
def test_open_mpi_starts_ranks_that_are_measured(
    hosts: list[Host], tmp_path: Path, launch: str
) -> None:
    words: tuple[str, ...] = ("--", *TORCHRUN)
    if launch == "once":
        # Started within mpirun's own process, whose variables would make another mpirun fail.
        mpirun = ("mpirun", "--allow-run-as-root", "--hostfile", "{hostfile}", "-np", "{nodes}")
        words = (*ONCE, "--", *mpirun, "--map-by", "ppr:1:node", *TORCHRUN)
    (tmp_path / "train.py").write_text(HEALTHY)
    command = (sys.executable, "-m", "gpuscale", "run", "--launcher", "mpirun", *OPTIONS)
    session = run_on(hosts, tmp_path, *command, *INTO_FILE, "--gpus", "4", *words)
    assert session.returncode == 0, session.stdout
    (made,) = runs_in(tmp_path)
    assert made.is_valid
    assert [entry for entry in processes_in(tmp_path) if sys.executable in entry] == []


@LAUNCHES
def test_a_node_that_dies_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    with slurm_cluster(TWO_NODES) as cluster:
        asked = ("--gpus", "4", "--timeout", "120", "--run-seconds", "100")
        process = start(cluster, tmp_path, *asked, *words)
        assert within_limit((tmp_path / "host-3").exists), (tmp_path / "log").read_text()
        cluster.nodes[1].kill()
        assert process.wait(LIMIT_S) == 1
        failure = runs_in(tmp_path)[0].failure
        assert failure is not None
        assert (failure.kind, failure.host) == ("launch", "n2"), failure
        assert processes_in(tmp_path) == []
