"""Ranks on the nodes of a real Slurm, from the allocation to the verdict, and what can go wrong."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from changing import replace
from measuring import BENCH_CASES, pytest_command, write_case
from node_cluster import (
    Node,
    NodeCluster,
    kill_daemon,
    kill_host,
    limit_link,
    mount_over,
    processes_in,
    reason_against,
    start_cluster,
)

from gpuscale.recording import baseline_from_results
from gpuscale.records import Results, Run
from gpuscale.store import read_results, write_baseline

pytestmark = pytest.mark.xdist_group("hosts")

ACROSS = ("--launcher", "slurm", "--device", "cpu", "--runs", "1")
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--exclusive")

# Behaves on rank 2 alone, the first of the second node, after the first step.
ON_RANK_2 = """
import os, signal, time

class Case(Tiny):
    calls = 0

    def forward(self, model, inputs):
        Case.calls += 1
        if os.environ["RANK"] == "2" and Case.calls == 3:
            {fault}
        return model(inputs)
"""
WIDE = """
class Case(Tiny):
    sample_shape = (256,)

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 10))
"""
STEPS = """
import os, subprocess
from gpuscale.launch.placement import place
from gpuscale.launch.scheduler import Demand
from gpuscale.launch.slurm import Slurm, srun_arguments

slurm = Slurm()
for ranks in (1, 2, 4):
    placement = place(ranks, slurm.hosts(), slots=2, first=0)
    program = ["sh", "-c", "echo $SLURM_PROCID:$CUDA_VISIBLE_DEVICES"]
    command = srun_arguments(program, placement, Demand(cores_per_rank=1))
    environment = slurm.environment(os.environ)
    seen = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    print(*sorted(seen.split()))
"""
WIDE_BYTES = 4 * (256 * 1024 + 1024 + 1024 * 10 + 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    reason = reason_against()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield start_cluster(stack, nodes=2)


def measure(
    cluster: NodeCluster, folder: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in `folder` on the login host, inside of an allocation of both nodes."""
    command = pytest_command(*arguments, *ACROSS)
    return cluster.run(*ALLOCATE, *command, folder=folder)


def results_in(folder: Path) -> Results:
    (path,) = (folder / ".gpuscale" / "results").glob("*.jsonl")
    return read_results(path)


def hosts_of(run: Run) -> list[tuple[str, int]]:
    return [(rank.host, rank.local_rank) for rank in run.ranks]


def wait_until(condition: Callable[[], bool], patience_s: float = 60) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_a_job_on_two_nodes_measures_one_two_and_four_ranks_to_a_verdict(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    case = str(BENCH_CASES / "test_mnist_cnn.py")
    options = ("--gpus", "1,2,4,8", "--strategy", "ddp", "--run-seconds", "0.5")
    session = measure(cluster, tmp_path, case, *options)
    assert session.returncode == 0, session.stdout
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
    assert fourth.startup_s is not None
    assert fourth.unsynced_windows
    assert list((tmp_path / ".gpuscale" / "results").glob(".run-*")) == []
    assert verdict_against_faster(tmp_path, results) == 1


def verdict_against_faster(folder: Path, results: Results) -> int:
    """The exit code of `gpuscale compare` with a baseline that was three times as fast."""
    recorded = baseline_from_results([results], name="before", cluster="test", minimum_runs=1)
    entries = [
        replace(
            entry,
            runs=tuple(
                replace(entry.runs[0], step_time_s=entry.runs[0].step_time_s / slower)
                for slower in (2.98, 2.99, 3.0, 3.0, 3.01, 3.02)
            ),
        )
        for entry in recorded.measured
    ]
    write_baseline(folder / "before.json", replace(recorded, measured=tuple(entries)))
    answer = subprocess.run(
        [sys.executable, "-m", "gpuscale", "compare", "before.json"], cwd=folder, check=False
    )
    return answer.returncode


def seen_gpus(cluster: NodeCluster, *job: str) -> str:
    """What the launcher's steps of one, two and four tasks see, in a job with such options."""
    return cluster.run("salloc", "--quiet", *job, sys.executable, "-c", STEPS).stdout


@pytest.mark.parametrize(
    "job",
    [
        ("--nodes=2", "--exclusive", "--gpus-per-node=2"),
        ("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--gpu-bind=single:1"),
    ],
)
def test_every_task_sees_all_gpus_of_its_node(cluster: NodeCluster, job: tuple[str, ...]) -> None:
    by_step = [line.split() for line in seen_gpus(cluster, *job).splitlines()]
    assert by_step == [["0:0,1"], ["0:0,1", "1:0,1"], ["0:0,1", "1:0,1", "2:0,1", "3:0,1"]]


@pytest.mark.parametrize("gpus", ["--gpus=4", "--gpus-per-task=1"])
def test_a_job_whose_gpus_are_not_by_node_is_refused(cluster: NodeCluster, gpus: str) -> None:
    said = seen_gpus(cluster, "--nodes=2", "--ntasks=4", gpus)
    assert "ask for them by node, with --gpus-per-node=4" in said


def test_a_rank_killed_on_another_node_is_named_and_the_next_item_runs(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    write_case(tmp_path, ON_RANK_2.format(fault="os.kill(os.getpid(), signal.SIGKILL)"))
    write_case(tmp_path, "class Healthy(Tiny):\n    pass\nCase = Healthy", name="test_well.py")
    session = measure(cluster, tmp_path, "--gpus", "4", "--run-seconds", "0.1")
    assert session.returncode == 1, session.stdout
    assert "rank 2 was killed by SIGKILL on n2" in session.stdout
    failed, healthy = results_in(tmp_path).runs
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.rank, failed.failure.host) == ("killed", 2, "n2")
    assert healthy.is_valid
    assert processes_in(tmp_path) == []


def test_no_process_outlives_a_pytest_that_is_killed(cluster: NodeCluster, tmp_path: Path) -> None:
    write_case(tmp_path, ON_RANK_2.format(fault="time.sleep(600)"))
    arguments = ("--gpus", "4", "--run-seconds", "0.1", *ACROSS)
    process = cluster.popen(
        *ALLOCATE, *pytest_command(*arguments), folder=tmp_path, log=tmp_path / "log"
    )
    assert wait_until(lambda: is_measuring(tmp_path)), (tmp_path / "log").read_text()
    cluster.run("pkill", "-KILL", "-f", f"^{sys.executable} -m pytest")
    assert wait_until(lambda: processes_in(tmp_path) == [], 30), processes_in(tmp_path)
    process.wait(timeout=30)


def is_measuring(folder: Path) -> bool:
    """Whether the ranks of a run have made their first step."""
    found = list((folder / ".gpuscale" / "results").glob(".run-*/progress"))
    return bool(found) and "warm-up" in found[0].read_text()


def test_a_node_that_does_not_see_the_results_folder_is_named_with_the_remedy(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    write_case(tmp_path, "Case = Tiny")
    (tmp_path / "hidden").mkdir()
    mount_over(cluster.nodes[1], tmp_path / "hidden")
    results = str(tmp_path / "hidden" / "results.jsonl")
    session = measure(cluster, tmp_path, "--gpus", "4", "--results", results)
    assert session.returncode == 4, session.stdout
    assert f"n2: does not see {tmp_path / 'hidden'}" in session.stdout
    assert "put the results on a file system that all nodes share" in session.stdout
    assert "n2: there is no folder" in session.stdout


def test_a_slow_link_between_nodes_shows_as_exposed_communication(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    write_case(tmp_path, WIDE)
    for node in cluster.nodes:
        # As Debian has it, a host's own name leads to itself alone: gloo needs to be told.
        own_name(node, cluster, tmp_path)
        limit_link(node, "100mbit")
    try:
        session = measure(cluster, tmp_path, "--gpus", "2,4", "--run-seconds", "0.5")
    finally:
        for node in cluster.nodes:
            limit_link(node, "none")
    assert session.returncode == 0, session.stdout
    within, across = results_in(tmp_path).runs
    assert len({host for host, _ in hosts_of(within)}) == 1
    assert len({host for host, _ in hosts_of(across)}) == 2
    assert within.exposed_communication_s is not None
    assert across.exposed_communication_s is not None
    # Each node must at least send its gradients once, and no faster than the link allows.
    least_s = WIDE_BYTES / (100e6 / 8)
    assert across.exposed_communication_s > 0.8 * least_s
    assert within.exposed_communication_s < 0.5 * across.exposed_communication_s


def own_name(node: Node, cluster: NodeCluster, folder: Path) -> None:
    others = "".join(f"{n.address} {n.name}\n" for n in cluster.nodes if n is not node)
    table = folder / f"hosts-{node.name}"
    table.write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n{others}")
    mount_over(node, Path("/etc/hosts"), table)


def test_ranks_on_a_node_that_dies_are_named(cluster: NodeCluster, tmp_path: Path) -> None:
    # The last test of this cluster: its second node is gone after it.
    write_case(tmp_path, ON_RANK_2.format(fault="time.sleep(600)"))
    log = tmp_path / "log"
    arguments = ("--gpus", "4", "--run-seconds", "0.1", *ACROSS)
    process = cluster.popen(*ALLOCATE, *pytest_command(*arguments), folder=tmp_path, log=log)
    assert wait_until(lambda: is_measuring(tmp_path)), log.read_text()
    kill_host(cluster.nodes[1])
    assert process.wait(timeout=120) == 1
    assert "ranks 2, 3 ended without a word on n2" in log.read_text()
    (path,) = (tmp_path / ".gpuscale" / "results").glob("*.jsonl")
    (run,) = [json.loads(line)["run"] for line in path.read_text().splitlines()[1:]]
    assert (run["failure"]["kind"], run["failure"]["host"]) == ("launch", "n2")
    assert processes_in(tmp_path) == []


def test_a_run_outlives_the_daemon_of_its_node_and_the_next_says_what_is_missing(
    tmp_path: Path,
) -> None:
    if (reason := reason_against()) is not None:
        pytest.skip(reason)
    write_case(tmp_path, "Case = Tiny")
    log = tmp_path / "log"
    arguments = ("--gpus", "4", "--run-seconds", "2", *ACROSS[:-1], "2")
    with ExitStack() as stack:
        cluster = start_cluster(stack, nodes=2)
        process = cluster.popen(*ALLOCATE, *pytest_command(*arguments), folder=tmp_path, log=log)
        assert wait_until(lambda: is_measuring(tmp_path)), log.read_text()
        kill_daemon(cluster.nodes[1])
        assert process.wait(timeout=120) == 1
        before, after = results_in(tmp_path).runs
        assert before.is_valid
        assert after.failure is not None
        assert after.failure.message.startswith("slurm did not start ranks 2, 3")
        assert "failed on node n2" in after.failure.detail
        assert processes_in(tmp_path) == []
