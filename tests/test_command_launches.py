"""Commands that start ranks by themselves, across the nodes of a real Slurm and a real Open MPI."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import LIMIT_S, Cluster, processes_in, within_limit
from nccl_speaks import SAID, SPEAK
from slurm_cluster import TWO_NODES, slurm_cluster
from statements import known
from test_launch_mpirun import open_mpi

from gpuscale.records import Run
from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

OPTIONS = ("--runs", "1", "--device", "cpu", "--run-seconds", "0.5", "--oversubscribe")
INTO_FILE = ("--results", "r.jsonl")
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--exclusive")
LAUNCHERS = ("slurm", "mpirun")
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes={nodes}"),
    *("--nproc-per-node={gpus_per_node}", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint={master_addr}:{master_port}", "train.py"),
)
ON_EACH_NODE = ("--launch", "per-node")
ONCE = ("--launch", "once")
ON_ALL_NODES = {
    "slurm": (
        *("srun", "--nodes={nodes}", "--nodelist={hosts}", "--ntasks-per-node=1"),
        "--kill-on-bad-exit=1",
    ),
    # Started within mpirun's own process, whose variables would make another mpirun fail.
    "mpirun": (
        *("mpirun", "--allow-run-as-root", "--hostfile", "{hostfile}", "-np", "{nodes}"),
        *("--map-by", "ppr:1:node"),
    ),
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    launcher: str
    cluster: Cluster

    def session(self, *command: str) -> tuple[str, ...]:
        return (*(ALLOCATE if self.launcher == "slurm" else ()), *command)

    def words(self, launch: str) -> tuple[str, ...]:
        """Return the words that start torchrun on each node, or a script that does so itself."""
        if launch == "per-node":
            return ("--", *TORCHRUN)
        return (*ONCE, "--", *ON_ALL_NODES[self.launcher], *TORCHRUN)

    def start(self, folder: Path, *words: str, script: str = HEALTHY) -> "subprocess.Popen[bytes]":
        """Start `gpuscale run` on both nodes; its output goes to `log` in the folder."""
        (folder / "train.py").write_text(script)
        kept = () if "--resume" in words else INTO_FILE
        run = ("-m", "gpuscale", "run", "--launcher", self.launcher, *OPTIONS, *kept, *words)
        return self.cluster.start(
            *self.session(sys.executable, *run),
            folder=folder,
            log=folder / "log",
            environment={"TMPDIR": str(self.cluster.directory / "scratch")},
        )

    def run(self, folder: Path, *words: str, script: str = HEALTHY) -> tuple[int, str]:
        """Run it to its end; return its exit code and output, and check that nothing is left."""
        code = self.start(folder, *words, script=script).wait(LIMIT_S)
        assert processes_in(folder) == []
        assert not list((self.cluster.directory / "scratch").glob("gpuscale-*"))
        assert not list(folder.glob(".run-*"))
        return code, (folder / "log").read_text()


@contextmanager
def site_of(launcher: str, folder: Path) -> Iterator[Site]:
    with slurm_cluster(TWO_NODES) if launcher == "slurm" else open_mpi(folder) as cluster:
        (cluster.directory / "scratch").mkdir(exist_ok=True)
        yield Site(launcher=launcher, cluster=cluster)


@pytest.fixture(scope="module", params=LAUNCHERS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with site_of(request.param, tmp_path_factory.mktemp("site")) as site:
        yield site


def runs_in(folder: Path) -> tuple[Run, ...]:
    return read_results(folder / "r.jsonl").runs


LAUNCHES = pytest.mark.parametrize("launch", ["per-node", "once"])


@LAUNCHES
def test_a_job_with_own_ranks_is_measured_as_it_is(site: Site, tmp_path: Path, launch: str) -> None:
    code, said = site.run(tmp_path, "--gpus", "1,4", *site.words(launch))
    assert code == 0, said
    first, fourth = runs_in(tmp_path)
    assert first.is_valid
    assert fourth.is_valid
    assert fourth.batch_per_gpu == 8
    # torchrun numbers the nodes as it likes.
    hosts = [(tmp_path / f"host-{rank}").read_text() for rank in range(4)]
    assert sorted(hosts) == ["n1", "n1", "n2", "n2"]
    assert [node.host for node in fourth.nodes] == ["n1", "n2"]
    if (site.launcher, launch) != ("mpirun", "once"):
        # Each rank where it really ran; a script's own mpirun takes no variables to other nodes.
        assert [rank.host for rank in fourth.ranks] == hosts
        assert [node.connections for node in fourth.nodes] == [SAID, SAID]
    # The second start measures nothing again.
    code, said = site.run(tmp_path, "--resume", "r.jsonl", "--gpus", "1,4", *site.words(launch))
    assert code == 0, said
    assert len(runs_in(tmp_path)) == 2


@LAUNCHES
def test_a_rank_killed_on_the_other_node_is_named(site: Site, tmp_path: Path, launch: str) -> None:
    asked = ("--gpus", "4", "--run-seconds", "100")
    code, said = site.run(tmp_path, *asked, *site.words(launch), script=KILLED)
    assert code == 1, said
    failure = known(runs_in(tmp_path)[0].failure)
    assert (failure.kind, failure.rank) == ("killed", 3), failure
    assert "rank 3 was killed by SIGKILL" in failure.message
    # A script's own ranks may be anywhere.
    where = None if launch == "once" else (tmp_path / "host-3").read_text()
    assert failure.host == where


# Fewer, since each waits for the timeout.
@pytest.mark.parametrize(
    ("site", "launch"),
    [("slurm", "per-node"), ("slurm", "once"), ("mpirun", "once")],
    indirect=["site"],
)
def test_a_hang_ends_at_the_timeout_on_all_nodes(site: Site, tmp_path: Path, launch: str) -> None:
    asked = ("--gpus", "4", "--timeout", "40", "--run-seconds", "14")
    code, said = site.run(tmp_path, *asked, *site.words(launch), script=ALL_HANG)
    assert code == 1, said
    failure = known(runs_in(tmp_path)[0].failure)
    assert (failure.kind, failure.rank) == ("timeout", None)
    assert "the command was not done after 40 s" in failure.message
    assert "batch 21 does not come" in failure.detail


@LAUNCHES
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_node_that_dies_is_named(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, launcher: str, launch: str
) -> None:
    with site_of(launcher, tmp_path_factory.mktemp("site")) as site:
        asked = ("--gpus", "4", "--timeout", "120", "--run-seconds", "100")
        process = site.start(tmp_path, *asked, *site.words(launch))
        has_begun = (tmp_path / "host-3").exists
        assert within_limit(lambda: has_begun() or process.poll() is not None)
        assert has_begun(), (tmp_path / "log").read_text()
        site.cluster.nodes[1].kill()
        assert process.wait(LIMIT_S) == 1
        failure = known(runs_in(tmp_path)[0].failure)
        assert failure.kind == "launch", failure
        assert re.search(r" on (n\d, )*n2:", failure.message), failure
        # mpirun ends the other nodes too, and may not say which daemon it lost.
        assert failure.host == "n2" or (launcher == "mpirun" and failure.host is None), failure
        # srun ends with the node; the keeper of the other one may still be ending its command.
        assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)
