from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ci_checkout import REPOSITORY, job_environment, make_checkout

if TYPE_CHECKING:
    # Else pytest could not rewrite its assertions: the plugin must not be imported before.
    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.xdist_group("hosts")

pytest_plugins = ["slurm_cluster"]

SLURM_SCRIPTS = {
    "juwels-booster.sbatch": "96 processors on nodes jwb1 in partition booster",
    "cte-power.sbatch": "160 processors on nodes p9n1 in partition main",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


@pytest.mark.parametrize("script", SLURM_SCRIPTS)
def test_slurm_accepts_the_job_for_a_node_of_its_cluster(
    slurm: "SlurmCluster", script: str
) -> None:
    job = str(REPOSITORY / "ci" / script)
    accepted = slurm.run("sbatch", "--test-only", job)
    assert accepted.returncode == 0, accepted.stderr
    assert SLURM_SCRIPTS[script] in accepted.stderr
    assert slurm.run("sbatch", "--test-only", "--gres=gpu:5", job).returncode != 0


@pytest.mark.parametrize(
    "options", [["--gres=gpu:1", "--cpus-per-task=40"], ["--gres=gpu:2", "--cpus-per-task=80"]]
)
def test_slurm_accepts_fewer_gpus_with_the_cores_that_cte_power_ties_to_them(
    slurm: "SlurmCluster", options: list[str]
) -> None:
    job = str(REPOSITORY / "ci" / "cte-power.sbatch")
    accepted = slurm.run("sbatch", "--test-only", *options, job)
    assert accepted.returncode == 0, accepted.stderr
    assert f"{options[1].split('=')[1]} processors on nodes p9n1" in accepted.stderr


@pytest.mark.parametrize("script", SLURM_SCRIPTS)
def test_job_that_regressed_fails_in_slurm(
    slurm: "SlurmCluster", checkout: Path, script: str
) -> None:
    settings = job_environment(checkout, {"PATH": slurm.environment["PATH"]}, verdict=1)
    submitted = slurm.run(
        "sbatch", "--wait", "--parsable", f"ci/{script}", cwd=checkout, environment=settings
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
    assert f"SLURM_CPUS_PER_TASK={SLURM_SCRIPTS[script].split()[0]}\n" in environment
