"""The job of ARC4 on a real Grid Engine, by `gpuscale submit`."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Cluster, ended
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
SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "arc4", "--yes", "--wait", "--runs", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with sge_cluster() as cluster:
        yield cluster


def arc4_site(folder: Path) -> Path:
    """Make a checkout as on ARC4, with published speeds that any scaling reaches."""
    site = make_site(folder, [(1, 1, 1.0), (2, 1, 1e-6)], baseline="arc4", case="mnist_cnn")
    shutil.copytree(REPOSITORY / "ci", site / "ci")
    (site / ".venv").symlink_to(sys.prefix)
    write_case(site / "bench_cases", CASE, name="test_mnist_cnn.py")
    (site / "bench_cases" / "conftest.py").write_text(ON_CPU_RANKS)
    return site


def test_submit_follows_the_job_to_its_verdict(cluster: Cluster, tmp_path: Path) -> None:
    site = arc4_site(tmp_path)
    answer = ended(cluster.run(*SUBMIT, folder=site))
    assert "ended as done: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/arc4").glob("*_*")
    record = record_of(night)
    assert (record["night"], record["all measured"], record["host"]) == ("ok", "yes", NODE)
    results = read_results(night / "results.jsonl")
    assert [len(run.ranks) for run in results.runs] == [1, 2, 4]
    assert {rank.host for run in results.runs for rank in run.ranks} == {NODE}
    assert results.environment.scheduler == "sge"
