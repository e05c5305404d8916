"""Ranks on the nodes of a real Slurm, and what can go wrong."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import gpuscale
from hosts import LIMIT_S, Cluster, Host, ended, processes_in, within_limit
from measuring import BENCH_CASES, on_rank, pytest_command, write_case
from slurm_cluster import TWO_NODES, slurm_cluster
from statements import known

from gpuscale.records import Results, Run
from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

ACROSS = ("--launcher", "slurm", "--device", "cpu", "--runs", "1")
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--exclusive")

WIDE = """
class Case(Tiny):
    sample_shape = (256,)

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 10))
"""
STEPS = """
import os, subprocess
from msgspec.structs import replace
from gpuscale.measure.schedulers.placement import place
from gpuscale.measure.schedulers.slurm import Slurm

slurm = Slurm()
for ranks in (1, 2, 4):
    placement = place(ranks, slurm.hosts(), slots=2, first=0)
    program = ["sh", "-c", "echo $SLURM_PROCID:$CUDA_VISIBLE_DEVICES"]
    command = slurm.arguments(program, replace(placement, cores_per_rank=1))
    environment = {name: os.environ[name] for name in os.environ if slurm.reaches(name)}
    seen = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    print(*sorted(seen.split()))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(TWO_NODES) as cluster:
        yield cluster


def measure(cluster: Cluster, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in `folder` on the login host, inside an allocation of both nodes."""
    command = pytest_command(*arguments, *ACROSS)
    return cluster.run(*ALLOCATE, *command, folder=folder)


def results_in(folder: Path) -> Results:
    (path,) = (folder / ".gpuscale" / "results").glob("*.jsonl")
    return read_results(path)


def hosts_of(run: Run) -> list[tuple[str, int | None]]:
    return [(rank.host, rank.local_rank) for rank in run.ranks]


def nodes_of(run: Run) -> list[str]:
    """Return the nodes for which the run recorded the load."""
    return [node.host for node in run.nodes if node.load is not None]


def test_a_job_on_two_nodes_is_measured_where_it_runs(cluster: Cluster, tmp_path: Path) -> None:
    case = str(BENCH_CASES / "test_mnist_cnn.py")
    options = ("--gpus", "1,2,4,8", "--strategy", "ddp", "--run-seconds", "0.5")
    session = ended(measure(cluster, tmp_path, case, *options))
    assert "on 2 nodes with 2 CPU cores" in session.stdout
    assert "8 CPU ranks need as many cores; 2 nodes with 2 each found" in session.stdout
    results = results_in(tmp_path)
    environment = results.environment
    assert (environment.launcher, environment.scheduler) == ("slurm", "slurm")
    # Of the nodes that measured, although pytest ran on the login host.
    assert environment.host == "n1"
    assert [node.host for node in environment.nodes] == ["n1", "n2"]
    first, second, fourth = results.runs
    assert hosts_of(first) == [("n1", 0)]
    assert hosts_of(second) == [("n1", 0), ("n1", 1)]
    assert hosts_of(fourth) == [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]
    assert [nodes_of(run) for run in results.runs] == [["n1"], ["n1"], ["n1", "n2"]]
    assert fourth.startup_s is not None
    assert fourth.unsynced_windows
    assert list((tmp_path / ".gpuscale" / "results").glob(".run-*")) == []


def seen_gpus(cluster: Cluster, *job: str) -> str:
    """Return the GPUs that job steps of one, two and four tasks see in a job with these options."""
    return cluster.run("salloc", "--quiet", *job, sys.executable, "-c", STEPS).stdout


@pytest.mark.parametrize(
    "job",
    [
        ("--nodes=2", "--exclusive", "--gpus-per-node=2"),
        ("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--gpu-bind=single:1"),
    ],
)
def test_every_task_sees_all_gpus_of_its_node(cluster: Cluster, job: tuple[str, ...]) -> None:
    by_step = [line.split() for line in seen_gpus(cluster, *job).splitlines()]
    assert by_step == [["0:0,1"], ["0:0,1", "1:0,1"], ["0:0,1", "1:0,1", "2:0,1", "3:0,1"]]


@pytest.mark.parametrize("gpus", ["--gpus=4", "--gpus-per-task=1"])
def test_a_job_whose_gpus_are_not_by_node_is_refused(cluster: Cluster, gpus: str) -> None:
    said = seen_gpus(cluster, "--nodes=2", "--ntasks=4", gpus)
    assert "ask for them by node, with --gpus-per-node=4" in said


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ("os.getpid()", "rank 2 was killed by SIGKILL on n2"),
        # Its keeper, of which the next item has a new one.
        ("os.getppid()", "ranks 2, 3 ended without a word on n2"),
    ],
)
def test_what_is_killed_on_another_node_is_named_and_the_next_item_is_measured(
    cluster: Cluster, tmp_path: Path, process: str, said: str
) -> None:
    # Rank 2 is the first of the second node.
    write_case(tmp_path, on_rank(2, f"os.kill({process}, signal.SIGKILL)"))
    write_case(tmp_path, "class Healthy(Tiny):\n    pass\nCase = Healthy", name="test_well.py")
    session = ended(measure(cluster, tmp_path, "--gpus", "4", "--run-seconds", "0.1"), 1)
    assert said in session.stdout
    failed, healthy = results_in(tmp_path).runs
    failure = known(failed.failure)
    if process == "os.getpid()":
        assert (failure.kind, failure.rank, failure.host) == ("killed", 2, "n2")
        # A run that fails leaves evidence as well.
        assert nodes_of(failed) == ["n1", "n2"]
    assert healthy.is_valid
    assert nodes_of(healthy) == ["n1", "n2"]
    assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)


def test_no_process_outlives_a_pytest_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    write_case(tmp_path, on_rank(2, "time.sleep(600)"))
    process = start_measuring(cluster, tmp_path, "--run-seconds", "0.1")
    cluster.run("pkill", "-KILL", "-f", f"^{sys.executable} -m pytest")
    assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)
    process.wait(timeout=LIMIT_S)


def start_measuring(cluster: Cluster, folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start pytest, with its output in the file `log`, and wait for the first step of its ranks."""

    def is_measuring() -> bool:
        found = list((folder / ".gpuscale" / "results").glob(".run-*/progress"))
        return bool(found) and "warm-up" in found[0].read_text()

    command = pytest_command("--gpus", "4", *ACROSS, *arguments)
    process = cluster.start(*ALLOCATE, *command, folder=folder, log=folder / "log")
    assert within_limit(is_measuring), (folder / "log").read_text()
    return process


def test_lost_packets_are_found_behind_slow_communication(cluster: Cluster, tmp_path: Path) -> None:
    write_case(tmp_path, WIDE)
    command = pytest_command("--gpus", "4", *ACROSS[:-1], "3", "--run-seconds", "1")
    try:
        for name in ("then", "now"):
            for node in cluster.nodes:
                own_name(node, cluster, tmp_path)
                if name == "now":
                    node.limit_link("50mbit", queue="burst 16kb limit 20kb")
            ended(cluster.run(*ALLOCATE, *command, f"--results={name}.jsonl", folder=tmp_path))
    finally:
        for node in cluster.nodes:
            node.lift_limit()
    answer = ended(gpuscale("compare", "then.jsonl", "now.jsonl", cwd=tmp_path), 1)
    text = " ".join(answer.stdout.split())
    assert re.search(r"· n[12] TCP: \+[\d,]+ retransmissions a run, ", text)


def own_name(node: Host, cluster: Cluster, folder: Path) -> None:
    others = "".join(f"{n.address} {n.name}\n" for n in cluster.nodes if n is not node)
    table = folder / f"hosts-{node.name}"
    table.write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n{others}")
    node.mount_over(Path("/etc/hosts"), table)


@pytest.mark.parametrize("options", [(), ("--fresh-tasks",)])
def test_a_run_outlives_the_daemon_of_its_node(tmp_path: Path, options: tuple[str, ...]) -> None:
    write_case(tmp_path, "Case = Tiny")
    with slurm_cluster(TWO_NODES) as cluster:
        asked = ("--run-seconds", "2", "--runs", "2", *options)
        process = start_measuring(cluster, tmp_path, *asked)
        # As a crash of it does; what it started goes on.
        cluster.run("pkill", "-KILL", "--exact", "slurmd", on=cluster.nodes[1])
        code = process.wait(timeout=LIMIT_S)
        before, after = results_in(tmp_path).runs
        assert before.is_valid
        assert nodes_of(before) == ["n1", "n2"]
        # A new task needs the daemon; the process that forks the next ranks is there already.
        assert (code, after.failure is None) == ((1, False) if options else (0, True))
        if after.failure is not None:
            assert after.failure.message.startswith("slurm did not start ranks 2, 3")
            assert "failed on node n2" in after.failure.detail
        assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)
