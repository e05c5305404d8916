"""`gpuscale fleet` on a real Slurm: hosts of their own, with CPU ranks or emulated GPUs."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import LIMIT_S, Cluster, processes_in, within_limit
from measuring import emulated_gpus, write_case
from nvml.library import compile_driver
from slurm_cluster import slurm_cluster

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

PROFILE = """\
description = "Hosts on one machine"
scheduler = "slurm"

[node]
gpus = 1  # a CPU rank stands in for a GPU
cores = 2

[job]
time_limit = "00:10:00"
gpu_option = ""

[measure]
device = "cpu"
run_seconds = 1.0
options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]

[judge]
on_verdict = 'cat >told; echo "$GPUSCALE_NIGHT_EXIT" >>told'
"""
FLEET = (sys.executable, "-m", "gpuscale", "fleet")
MAIN = ("--partition", "main")
NODES = {**{f"n{number}": "CPUs=2" for number in range(1, 6)}, "big": "CPUs=4"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Five alike nodes and a larger one, which end with the tests of this file."""
    partitions = ("main Nodes=n[1-5],big Default=YES", "test Nodes=n1,n2,n3,n4")
    with slurm_cluster(NODES, partitions=partitions, down_after_s=120) as cluster:
        yield cluster


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "bench_cases").mkdir(parents=True)
    (root / "mysite.toml").write_text(PROFILE)
    write_case(root / "bench_cases", "class Case(Tiny):\n    pass\n")
    return root


def fleet(cluster: Cluster, site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return cluster.run(*FLEET, *arguments, folder=site)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*MAIN, "--nodes", "n[1-4],x7"), "there is no x7; sinfo lists big,n[1-5]"),
        (("--nodes", "n[1-5]"), "the nodes are in partitions main, test; name one by --partition"),
        (MAIN, "only nodes of one kind can be compared: n[1-5] has gpu:2, 2 cores; big has"),
        (("--nodes", "n5"), "1 node cannot be compared; name 4 or more"),
        (("--nodes", "n[1-"), 'missing bracket: "n[1-"; write nodes as nid[0001-0064,0070]'),
        ((*MAIN, "--case", "gpt"), "there is no file bench_cases/test_gpt.py; name one file of"),
        (("--resume", "bench_cases"), "as it was begun; leave out PROFILE, --case"),
    ],
)
def test_nodes_that_cannot_be_compared_are_refused_in_one_line(
    cluster: Cluster, site: Path, options: tuple[str, ...], message: str
) -> None:
    case = () if "--case" in options else ("--case", "tiny")
    answer = fleet(cluster, site, "run", "./mysite.toml", *case, *options, "--yes")
    assert answer.returncode == 2
    assert message in answer.stdout
    assert answer.stdout.count("\n") == 1
    assert not (site / ".gpuscale").exists()


def test_each_node_is_measured_in_a_job_of_its_own(cluster: Cluster, site: Path) -> None:
    cluster.run("scontrol", "update", "nodename=n5", "state=drain", "reason=fan")
    nodes = (*MAIN, "--nodes", "n[1-5]")
    options = ("--case", "tiny", "--jobs", "2", "--yes")
    answer = fleet(cluster, site, "run", "./mysite.toml", *nodes, *options)
    assert "5 nodes of main, each with bench_cases/test_tiny.py on 1 CPU rank" in answer.stdout
    assert "down       n5: drained (fan)" in answer.stdout
    assert "estimate: 81.0 s a node, 0.112 GPU-hours in all" in answer.stdout
    (folder,) = (site / ".gpuscale/fleet").iterdir()
    files = sorted(folder.glob("n?-1.jsonl"))
    runs = {path.name: read_results(path).runs for path in files}
    assert {name: runs[name][0].ranks[0].host for name in runs} == {
        f"n{number}-1.jsonl": f"n{number}" for number in (1, 2, 3, 4)
    }
    assert all(len(of_node) == 3 for of_node in runs.values())
    shown = fleet(cluster, site, "show")
    assert answer.stdout.endswith(shown.stdout)
    assert shown.returncode == answer.returncode
    document = json.loads(fleet(cluster, site, "show", "--format", "json").stdout)
    assert document["exit_code"] == shown.returncode
    told, _, code = (site / "told").read_text().strip().rpartition("\n")
    assert (json.loads(told), code) == (document, str(shown.returncode))
    table = csv.DictReader(io.StringIO(fleet(cluster, site, "show", "--format", "csv").stdout))
    assert sorted(row["node"] for row in table) == ["n1", "n2", "n3", "n4", "n5"]
    assert fleet(cluster, site, "show", "--format", "openmetrics").stdout.endswith("# EOF\n")
    table_of_one = cluster.run(sys.executable, "-m", "gpuscale", "show", str(files[0]))
    assert "case/ddp" in table_of_one.stdout
    assert processes_in(site) == []


# It waits and does not compute, so other devices on the same cores are as fast as before.
ONE_SLOW_GPU = """
import socket
import time


class Case(Tiny):
    def loss(self, output, target):
        is_slow = (socket.gethostname(), output.device.index) == ("n2", 3)
        time.sleep(0.12 if is_slow else 0.03)
        return super().loss(output, target)
"""


def test_each_gpu_is_measured_alone_and_the_slow_one_is_named(site: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    profile = PROFILE.replace('gpu_option = ""\n', "").replace('device = "cpu"\n', "")
    profile = profile.replace("gpus = 1", "gpus = 4").replace("cores = 2", "cores = 4")
    (site / "mysite.toml").write_text(profile.replace("1.0", "0.5"))
    write_case(site / "bench_cases", ONE_SLOW_GPU)
    there = {"LD_LIBRARY_PATH": str(compile_driver(driver)), "FAKE_NVML_FLEET": "0,1,2,3"}
    emulated = {**emulated_gpus(4), **there}
    nodes = ("n1", "n2", "n3", "n4")
    with slurm_cluster(dict.fromkeys(nodes, "CPUs=4"), gpus=4, down_after_s=120) as cluster:
        options = ("./mysite.toml", "--case", "tiny", "--jobs", "2", "--yes")
        answer = cluster.run(*FLEET, "run", *options, folder=site, environment=emulated)
        shown = fleet(cluster, site, "show").stdout
        document = json.loads(fleet(cluster, site, "show", "--format", "json").stdout)
    assert "4 nodes of main, each with bench_cases/test_tiny.py on 1 and 4 GPUs" in answer.stdout
    assert answer.stdout.endswith(shown)
    measured = defaultdict(set)
    for path in site.glob(".gpuscale/fleet/*/n?-?.jsonl"):
        for run in read_results(path).runs:
            measured[path.name[:2]].add(tuple(d for rank in run.ranks for d in rank.devices))
    assert measured == {node: {(0,), (1,), (2,), (3,), (0, 1, 2, 3)} for node in nodes}
    worst = document["nodes"][0]
    assert (worst["node"], worst["row"]) == ("n2", {"gpus": 1, "device": 3}), answer.stdout
    # On a busy machine its hosts may differ too much to prove it.
    assert worst["state"] in ("sick", "unclear"), answer.stdout
    assert worst["jobs_slow"] == worst["jobs"] > 1, answer.stdout
    assert re.search(r"n2 .*   GPU 3: .*   in .* jobs", shown), shown


HOSTS = [f"h{number:02}" for number in range(1, 13)]


def test_a_sweep_outlives_what_happens_to_its_hosts_its_slurm_and_itself(site: Path) -> None:
    with slurm_cluster(dict.fromkeys(HOSTS, "CPUs=2")) as cluster:
        cluster.run("scontrol", "update", "nodename=h09", "state=drain", "reason=fan")
        begin = ("run", "./mysite.toml", "--case", "tiny", "--jobs", "2", "--yes")
        log = site / "said"
        process = cluster.start(*FLEET, *begin, folder=site, log=log)
        assert within_limit(lambda: "h02 measured" in log.read_text())
        _restart_controller(cluster)
        assert within_limit(lambda: (_logs(site) / "h05-1.log").exists())
        cluster.nodes[HOSTS.index("h05")].kill()
        assert within_limit(lambda: bool(re.search("measured; [5-9] of", log.read_text())))
        _interrupt(site)
        assert process.wait(timeout=LIMIT_S) == 130, log.read_text()
        assert "'gpuscale fleet run --resume .gpuscale/fleet/" in log.read_text()
        answer = fleet(cluster, site, "run", "--resume", "--jobs", "2")
        said = log.read_text() + answer.stdout
        document = json.loads(fleet(cluster, site, "show", "--format", "json").stdout)
        state = {node["node"]: node["state"] for node in document["nodes"]}
        assert (state.pop("h05"), state.pop("h09")) == ("not measured",) * 2
        assert "not measured" not in state.values(), said
        # On a busy machine its hosts may be disturbed.
        sick = {node["node"] for node in document["nodes"] if node["state"] == "sick"}
        expected = 1 if sick else 3 if "unclear" in state.values() else 5
        assert answer.returncode == expected, said
        assert {name for name in HOSTS if name[1:] in document["exclude"]} == sick
        assert "down       h09: drained (fan)" in answer.stdout
        assert "down       h05: job ended as NODE_FAIL" in answer.stdout
        assert any(job.get("is_control") for job in document["sweep"]["jobs"])
        assert cluster.run("squeue", "--noheader").stdout == ""
        assert within_limit(lambda: processes_in(site) == []), processes_in(site)
        assert [*_logs(site).parent.glob(".run-*")] == []


def _logs(site: Path) -> Path:
    return next((site / ".gpuscale/fleet").glob("*/logs"), site / "none")


def _restart_controller(cluster: Cluster) -> None:
    pid = (cluster.directory / "slurmctld.pid").read_text().strip()
    cluster.run("kill", pid)
    within_limit(lambda: cluster.run("sinfo", "--noheader").returncode != 0, 20)
    cluster.start("slurmctld", "-D", folder=cluster.directory, log=cluster.directory / "again.out")


def _interrupt(site: Path) -> None:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_here = (entry / "cwd").readlink() == site
            if is_here and b"fleet" in words and words[0].endswith(b"python"):
                os.kill(int(entry.name), signal.SIGINT)
