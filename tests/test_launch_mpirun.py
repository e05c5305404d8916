"""Ranks on two hosts, started by a real Open MPI."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hosts import Cluster, ended, outside_environment, processes_in, skip_without_hosts, start_hosts
from measuring import pytest_command, write_case

from gpuscale.base.host import allowed_cpus
from gpuscale.store.results import read_results

HERE = sorted(os.sched_getaffinity(0))
FIRST, LAST = HERE[0], HERE[-1]

# What ssh is on a cluster: reaches a host by its name and runs a command there, with what a login
# has in its environment.
REMOTE_SHELL = """#!/bin/sh
host=$1; shift
case $host in
{cases}
esac
exec env -i PATH=/usr/bin:/bin HOME=/tmp TMPDIR={scratch} \\
    nsenter --target "$pid" --net --uts --mount --wd=/ -- /bin/sh -c "$*"
"""


TOLD = """
import os

class Case(Tiny):
    def model(self):
        assert os.environ["TORCH_CPP_LOG_LEVEL"] == "ERROR", "did not reach this rank"
        return super().model()
"""


@contextmanager
def open_mpi(folder: Path) -> Iterator[Cluster]:
    """Provide two hosts of a PBS job, which mpirun reaches by a remote shell."""
    skip_without_hosts(["mpirun"], "openmpi-bin")
    with ExitStack() as stack:
        _, *nodes = start_hosts(stack, folder, ["n1", "n2"], own_processes=False)
        agent = folder / "remote-shell"
        cases = "\n".join(f"{node.name}) pid={node.pid};;" for node in nodes)
        agent.write_text(REMOTE_SHELL.format(cases=cases, scratch=folder / "scratch"))
        agent.chmod(0o755)
        (folder / "scratch").mkdir()
        (folder / "nodes").write_text("n1\nn1\nn2\nn2\n")
        environment = {
            **outside_environment(),
            "PBS_NODEFILE": str(folder / "nodes"),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "OMPI_MCA_plm_rsh_agent": str(agent),
            # As on the machine that this is: two cores, however many hosts are made of them.
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
        # As in a job of LSF or PBS, whose script runs on the first of its hosts.
        yield Cluster(directory=folder, login=nodes[0], nodes=nodes, environment=environment)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_mpi(tmp_path_factory.mktemp("open-mpi")) as cluster:
        yield cluster


ACROSS = (
    *("--gpus", "4", "--launcher", "mpirun", "--device", "cpu", "--runs", "1"),
    *("--run-seconds", "0.1", "--results", "results.jsonl", "--oversubscribe"),
)


@pytest.mark.scheduler
def test_mpirun_measures_across_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    write_case(tmp_path, TOLD)
    ended(cluster.run(*pytest_command(*ACROSS), folder=tmp_path))
    results = read_results(tmp_path / "results.jsonl")
    assert results.environment.launcher == "mpirun"
    assert [node.host for node in results.environment.nodes] == ["n1", "n2"]
    (run,) = results.runs
    placed = [(rank.host, rank.local_rank) for rank in run.ranks]
    assert placed == [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]
    assert [node.host for node in run.nodes if node.load] == ["n1", "n2"]
    # Open MPI itself would bind two processes to a core each.
    assert [node.cpus for node in run.nodes] == [(allowed_cpus("self"),)] * 2
    assert processes_in(tmp_path) == []


@pytest.mark.scheduler
@pytest.mark.skipif(FIRST == LAST, reason="needs two CPUs")
def test_the_site_or_a_map_binds_the_ranks_of_each_host(cluster: Cluster, tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")

    def bound(binding: str) -> "subprocess.CompletedProcess[str]":
        asked = pytest_command(*ACROSS, "--cpu-bind", binding, "--results", f"{binding[:4]}.jsonl")
        by_core = {"OMPI_MCA_hwloc_base_binding_policy": "core"}
        return cluster.run(*asked, folder=tmp_path, environment=by_core)

    for binding, cpus in (("site", HERE[:2]), (f"map_cpu:{LAST},{FIRST}", [LAST, FIRST])):
        ended(bound(binding))
        (run,) = read_results(tmp_path / f"{binding[:4]}.jsonl").runs
        assert [node.cpus for node in run.nodes] == [tuple(map(str, cpus))] * 2
    refused = ended(bound(f"mask_cpu:{1 << LAST + 7:x}"), 1)
    reason = f"--cpu-bind: CPU {LAST + 7} is not one of the job's on this node"
    assert [line for line in refused.stdout.splitlines() if line.startswith(reason)], refused.stdout
    assert "Traceback" not in refused.stdout


# The last rank has the lines, as with some frameworks; the others would go on for ever.
COMMAND = """
import os, time
import msgspec  # has a library, which shows where packages are
from gpuscale import report

(bound_to,) = os.sched_getaffinity(0)
assert str(bound_to) == os.environ["MAP"].split(",")[int(os.environ["LOCAL_RANK"])]
with report(samples=32, rank=int(os.environ["RANK"]) - 3) as step_done:
    while True:
        time.sleep(0.01)
        step_done()
"""


@pytest.mark.scheduler
def test_mpirun_starts_a_command_per_rank_on_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMMAND)
    nccl = tmp_path / "libnccl.so.2"
    subprocess.run(["gcc", "-shared", "-o", nccl, "-x", "c", "/dev/null"], check=True)
    of_ranks = f"{LAST},{FIRST}"
    train = ("env", f"LD_PRELOAD={nccl}", f"MAP={of_ranks}", sys.executable, "train.py")
    across = (*ACROSS, "--cpu-bind", f"map_cpu:{of_ranks}")
    command = (sys.executable, "-m", "gpuscale", "run", *across, "--", *train)
    ended(cluster.run(*command, folder=tmp_path))
    results = read_results(tmp_path / "results.jsonl")
    (run,) = results.runs
    assert results.environment.packages, results.environment.packages_absent
    assert [[library.path for library in node.libraries] for node in run.nodes] == [[str(nccl)]] * 2
    assert (run.is_valid, run.batch_per_gpu) == (True, 8)
    assert [node.host for node in run.nodes if node.load] == ["n1", "n2"]
    assert processes_in(tmp_path) == []
