from collections.abc import Iterator
from pathlib import Path

import pytest
from ci_checkout import job_environment, make_checkout
from hosts import Cluster
from slurm_cluster import slurm_cluster

pytestmark = pytest.mark.scheduler

# Nodes as JUWELS Booster and CTE-POWER have them.
NODES = {
    "jwb1": "Sockets=2 CoresPerSocket=24 ThreadsPerCore=2",
    "p9n1": "Sockets=2 CoresPerSocket=20 ThreadsPerCore=4",
}
CPUS = {"juwels-booster.sbatch": 96, "cte-power.sbatch": 160}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    partitions = ("booster Nodes=jwb1", "main Nodes=p9n1 Default=YES")
    with slurm_cluster(NODES, gpus=4, partitions=partitions) as cluster:
        yield cluster


@pytest.mark.parametrize("script", CPUS)
def test_job_that_regressed_fails_in_slurm(slurm: Cluster, tmp_path: Path, script: str) -> None:
    checkout = make_checkout(tmp_path)
    path = f"{checkout}/stand-ins:{slurm.environment['PATH']}"
    settings = job_environment(checkout, {"PATH": path}, verdict=1)
    submitted = slurm.run(
        "sbatch", "--wait", "--parsable", f"ci/{script}", folder=checkout, environment=settings
    )
    job = submitted.stdout.strip().split(";")[0]
    (log,) = checkout.glob("gpuscale-*.log")
    assert submitted.returncode == 1, log.read_text()
    assert "JobState=FAILED" in (shown := slurm.run("scontrol", "show", "job", job).stdout)
    assert "ExitCode=1:0" in shown
    (night,) = checkout.glob(f".gpuscale/nightly/*/*_{job}")
    assert "night: regressed\n" in (night / "night.txt").read_text()
    environment = (checkout / "calls/environment").read_text()
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3\n" in environment
    assert f"SLURM_CPUS_PER_TASK={CPUS[script]}\n" in environment
