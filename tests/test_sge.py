"""The job of ARC4 on a real Grid Engine, by its script and by `gpuscale submit`."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Cluster, ended, processes_in, within_limit
from measuring import REPOSITORY, write_case
from sge_cluster import NODE, sge_cluster
from site_folder import make_site, record_of

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

# ARC4's profile asks for full-size runs on GPUs, of which there are none here.
ON_CPU_RANKS = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.option.device = "cpu"
    config.option.oversubscribe = True
    config.option.run_seconds = "0.1"
"""
CASE = "class MnistCnn(Tiny):\n    pass\n\nCase = MnistCnn"
HANGS = """
import time

class MnistCnn(Tiny):
    def model(self):
        time.sleep(600)

Case = MnistCnn
"""
# Samples per second of one GPU and of two: far above and far below any scaling.
TOO_MUCH, HARDLY_ANY = (1.0, 4.0), (1.0, 1e-6)
SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "arc4", "--yes", "--wait", "--runs", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with sge_cluster() as cluster:
        yield cluster


def arc4_site(folder: Path, *, case: str, samples_per_s: tuple[float, float]) -> Path:
    """Make a checkout as on ARC4, with these published speeds on one and two GPUs."""
    published = [(gpus, 1, figure) for gpus, figure in enumerate(samples_per_s, start=1)]
    site = make_site(folder, published, baseline="arc4", case="mnist_cnn")
    shutil.copytree(REPOSITORY / "ci", site / "ci")
    (site / ".venv").symlink_to(sys.prefix)
    write_case(site / "bench_cases", case, name="test_mnist_cnn.py")
    (site / "bench_cases" / "conftest.py").write_text(ON_CPU_RANKS)
    return site


def night_in(site: Path) -> Path:
    (night,) = (site / ".gpuscale/nightly/arc4").glob("*_*")
    return night


def account_of(cluster: Cluster, job: str) -> str:
    """The accounting record of a job, which appears some seconds late."""
    answers: list[subprocess.CompletedProcess[str]] = []

    def is_kept() -> bool:
        answers.append(cluster.run("qacct", "-j", job))
        return answers[-1].returncode == 0

    assert within_limit(is_kept), answers[-1].stdout
    return answers[-1].stdout


def test_grid_engine_accepts_the_job_where_a_node_has_that_many_gpus(cluster: Cluster) -> None:
    job = str(REPOSITORY / "ci" / "arc4.sge")
    assert cluster.run("qsub", "-w", "v", job).returncode == 0
    refused = cluster.run("qsub", "-w", "v", "-l", "coproc_v100=5", job)
    assert "it offers only hc:coproc_v100=4" in refused.stdout


def test_the_job_script_ends_with_its_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    site = arc4_site(tmp_path, case=CASE, samples_per_s=TOO_MUCH)
    script = site / "ci" / "arc4.sge"
    script.write_text(script.read_text().replace("--runs 3 ", "--runs 1 "))
    command = ("qsub", "-sync", "y", "-terse", "ci/arc4.sge")
    submitted = cluster.run(*command, folder=site)
    (log,) = site.glob("gpuscale-arc4-*.log")
    assert submitted.returncode == 1, submitted.stdout + log.read_text()
    record = record_of(night_in(site))
    assert (record["night"], record["exit"], record["host"]) == ("regressed", "1", NODE)
    account = account_of(cluster, log.stem.rpartition("-")[2])
    assert "exit_status  1 " in account
    assert "coproc_v100=4,h_rt=3600" in account


def test_submit_follows_the_job_to_its_verdict(cluster: Cluster, tmp_path: Path) -> None:
    site = arc4_site(tmp_path, case=CASE, samples_per_s=HARDLY_ANY)
    answer = ended(cluster.run(*SUBMIT, folder=site))
    assert "ended as done: ok" in answer.stdout
    night = night_in(site)
    record = record_of(night)
    assert (record["night"], record["all measured"], record["host"]) == ("ok", "yes", NODE)
    results = read_results(night / "results.jsonl")
    assert [len(run.ranks) for run in results.runs] == [1, 2, 4]
    assert {rank.host for run in results.runs for rank in run.ranks} == {NODE}
    assert results.environment.scheduler == "sge"


def test_submit_tells_that_the_time_of_a_job_was_up(cluster: Cluster, tmp_path: Path) -> None:
    site = arc4_site(tmp_path, case=HANGS, samples_per_s=HARDLY_ANY)
    answer = ended(cluster.run(*SUBMIT, "--time", "00:00:10", folder=site), 5)
    assert "ended as failed 37 qmaster enforced h_rt" in answer.stdout
    assert within_limit(lambda: processes_in(site) == []), processes_in(site)
