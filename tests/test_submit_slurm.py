"""`gpuscale submit` on a real Slurm: hosts of their own, each with its name and address."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import LIMIT_S, Cluster, ended, processes_in, within_limit
from measuring import command_case, write_case
from site_folder import ON_EACH_NODE, SUBMIT, make_site, profile_of, record_of, write_cases
from slurm_cluster import TWO_NODES, slurm_cluster

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

STEPS = command_case("Steps", f"{sys.executable} steps.py", batch=8)
SRUN = f"srun --nodes={{nodes}} --ntasks={{gpus}} {sys.executable} steps.py"
BY_ITS_OWN_SRUN = command_case("ByItsOwnSrun", SRUN, batch=8, launch="once")
HANGS_ACROSS_NODES = """
import os, time
from pathlib import Path

class Case(Tiny):
    def model(self):
        if os.environ["WORLD_SIZE"] == "3":
            Path("{started}").touch()
            time.sleep(600)
        return super().model()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(TWO_NODES) as cluster:
        yield cluster


@pytest.fixture
def site(tmp_path: Path) -> Path:
    # Slower than anything, so that the noise of this machine decides nothing.
    root = make_site(tmp_path, [(1, 1, 1.0), (3, 2, 1e-6)])
    (root / "mysite.toml").write_text(profile_of("slurm"))
    return root


def submit_and_wait_until(
    cluster: Cluster, site: Path, *arguments: str, condition: Callable[[], bool]
) -> "subprocess.Popen[bytes]":
    """`gpuscale submit` on the login host, still following the job; it writes to `said`."""
    log = site / "said"
    process = cluster.start(*SUBMIT, *arguments, folder=site, log=log)
    assert within_limit(lambda: condition() or process.poll() is not None), log.read_text()
    assert process.poll() is None, log.read_text()
    return process


def test_a_profile_of_the_site_gets_a_verdict_from_two_nodes(cluster: Cluster, site: Path) -> None:
    write_cases(site, ON_EACH_NODE, STEPS, BY_ITS_OWN_SRUN)
    answer = ended(cluster.run(*SUBMIT, "--gpus", "1,3", folder=site))
    assert "on 1 and 3 CPU ranks, 2 nodes with 2 each, launcher slurm" in answer.stdout
    assert "ended as COMPLETED: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = record_of(night)
    assert (record["night"], record["all measured"]) == ("ok", "yes")
    assert record["nodes"] == "n1 n2"
    for name in ("results.jsonl", "comparison.json", "comparison.md", "comparison.xml"):
        assert (night / name).is_file()
    runs = read_results(night / "results.jsonl").runs
    across = {run.key.case: run for run in runs if run.gpus == 3}
    assert [rank.host for rank in across["case"].ranks] == ["n1", "n1", "n2"]
    assert across["steps"].is_valid
    assert across["on_each_node"].is_valid
    assert across["by_its_own_srun"].is_valid


def test_a_job_near_its_time_limit_compares_what_it_has(cluster: Cluster, site: Path) -> None:
    write_case(site / "bench_cases", "class Case(Tiny):\n    pass\n")

    def has_measured() -> bool:
        found = site.glob(".gpuscale/nightly/mysite/*/results.jsonl")
        return any(len(path.read_text().splitlines()) > 4 for path in found)

    options = ("--gpus", "1,3", "--runs", "300")
    process = submit_and_wait_until(cluster, site, *options, condition=has_measured)
    job = cluster.run("squeue", "--noheader", "--format=%i").stdout.strip()
    # What the job's --signal=B:TERM does before the limit.
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    assert process.wait(timeout=LIMIT_S) == 5, (site / "said").read_text()
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = record_of(night)
    assert "stopped by SIGTERM" in record["night"]
    assert (night / "comparison.json").is_file()
    # A busy machine makes runs unsteady; a run that was cut short would be another failure.
    failures = [run.failure for run in read_results(night / "results.jsonl").runs]
    assert all(failure is None or failure.kind == "unsteady" for failure in failures)
    assert processes_in(site) == []


def test_a_job_whose_second_node_dies_keeps_runs_of_the_first(cluster: Cluster, site: Path) -> None:
    # The last test of this cluster: its second node is gone after it.
    started = site / "started"
    write_case(site / "bench_cases", HANGS_ACROSS_NODES.format(started=started))
    process = submit_and_wait_until(cluster, site, "--gpus", "1,3", condition=started.exists)
    cluster.nodes[1].kill()
    assert process.wait(timeout=LIMIT_S) == 6, (site / "said").read_text()
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = (night / "night.txt").read_text()
    assert "attempts: 2\n" in record
    assert re.search("infrastructure: case/ddp on 3 CPU ranks, run 1: .* n2", record)
    runs = read_results(night / "results.jsonl").runs
    assert [rank.host for run in runs if run.is_valid for rank in run.ranks] == ["n1"]
    assert (night / "comparison.txt").is_file()
