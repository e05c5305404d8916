from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from ci_checkout import (
    JOB,
    REPOSITORY,
    SCRIPTS,
    SUBMITTED_FROM,
    job_environment,
    make_checkout,
    run_night,
    run_script,
    write_program,
)
from command_line import gpuscale
from hosts import Cluster
from slurm_cluster import slurm_cluster

IN_A_CONTAINER = """\
description = "Here"
scheduler = "slurm"

[node]
gpus = 1

[job]
time_limit = "01:00:00"
prologue = ['name="a b"', 'export PROXY="$name"']
container = "box ./here.sif"

[measure]
cases = ["."]

[judge]
on_verdict = '''echo "$GPUSCALE_NIGHT_EXIT, it's $GPUSCALE_NIGHT_MEANING" >"$CALLS/told"'''
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


@pytest.mark.parametrize(
    ("script", "of_pytest", "of_compare", "expected"),
    [
        # The whole table stands in test_night.py.
        ("arc4.sge", 0, 0, 0),
        ("arc4.sge", 0, 4, 4),
        ("arc4.sge", 1, 0, 5),
        ("arc4.sge", 5, 0, 4),
        *((script, 0, 1, 1) for script in SCRIPTS if script != "waic.lsf"),
    ],
)
def test_a_night_has_its_exit_code(
    checkout: Path, script: str, of_pytest: int, of_compare: int, expected: int
) -> None:
    night = run_script(checkout, script, PYTEST_EXIT=str(of_pytest), verdict=of_compare)
    assert night.exit_code == expected, night.output
    record = (night.directory / "night.txt").read_text()
    assert f"exit: {expected}\npytest exit: {of_pytest}\n" in record
    assert (night.directory / "pytest.log").read_text() == "measuring\n"
    assert (night.directory / "results.jsonl").exists() == (of_pytest != 5)
    assert (night.directory / "comparison.txt").exists() == (of_pytest != 5)
    assert (f"compare exit: {of_compare}\n" in record) == (of_pytest != 5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"LEFT_OUT": "GPUs_missing"}, 6),
        ({"LEFT_OUT": "needless"}, 0),
        ({"LEFT_OUT": "cannot_be_measured"}, 5),
        ({"MEASURED": "nothing"}, 4),
        ({"PYTEST_EXIT": "137"}, 6),
        ({"PYTEST_EXIT": "3", "MEASURED": "nothing"}, 2),
        # A comparison that breaks is no verdict: here of a file that is no results.
        ({"MEASURED": "/proc/version"}, 2),
    ],
)
def test_a_night_that_does_not_go_as_it_should_ends_with_its_own_code(
    checkout: Path, settings: dict[str, str], expected: int
) -> None:
    run_script(checkout, "arc4.sge", verdict=0, **settings).ended(expected)


@pytest.mark.parametrize(
    ("script", "file", "gpus", "judged"),
    [
        ("arc4.sge", "mnist_cnn.py", "1,2,4", {1, 2}),
        ("juwels-booster.sbatch", "resnet50.py", "1,4", {1, 4}),
        ("cte-power.sbatch", "resnet_v2_cifar.py::test_resnet50v2_cifar", "1,2,4", {1, 2, 4}),
    ],
)
def test_job_measures_and_judges_its_clusters_case(
    checkout: Path, script: str, file: str, gpus: str, judged: set[int]
) -> None:
    case = file.removesuffix(".py").rpartition("::test_")[2]
    measured = f"bench_cases/test_{file} --strategy ddp,command --gpus {gpus}"
    night = run_script(checkout, script, GPUSCALE_DATA_ROOT="/some data")
    kept = night.directory.relative_to(checkout)
    outputs = f"--results {kept}/results.jsonl --junitxml {kept}/junit.xml"
    own = " --precision tf32" if case == "resnet50" else ""
    rest = f"--device cuda --size full{own} --runs 3 --data-root /some data {outputs}"
    assert night.calls("pytest") == [f"{measured} {rest}"]
    assert night.judged() == {(case, number) for number in judged}
    assert "ok" in (night.directory / "comparison.txt").read_text()
    loaded = "modules: load Stages/2025 GCC Python\n" in night.output
    assert loaded == (script == "juwels-booster.sbatch")
    assert (REPOSITORY / measured.split("::")[0].split()[0]).is_file()


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        *((script, dict.fromkeys(SUBMITTED_FROM, "/nonexistent")) for script in SCRIPTS),
        ("juwels-booster.sbatch", {"BASH_FUNC_module%%": "() { echo no such module; return 1; }"}),
        ("arc4.sge", dict.fromkeys(SUBMITTED_FROM, "")),
        ("arc4.sge", {"GPUSCALE_VENV": "/nonexistent"}),
        ("arc4.sge", {"GPUSCALE_NIGHTLY_DIR": "/dev/null/nights"}),
    ],
)
def test_early_failures_end_with_2(checkout: Path, script: str, settings: dict[str, str]) -> None:
    night = run_script(checkout, script, verdict=0, **settings).ended(2)
    assert night.calls("pytest") == []
    assert night.output.strip()


def test_a_job_in_a_container_runs_there_after_its_prologue_or_says_why_not(checkout: Path) -> None:
    (checkout / "own.toml").write_text(IN_A_CONTAINER)
    script = gpuscale("submit", "./own.toml", "--gpus", "1", "--print", cwd=checkout).stdout
    (checkout / "job").write_text(script)
    inside = {"SLURM_JOB_ID": JOB, "SLURM_SUBMIT_DIR": str(checkout)}
    environment = job_environment(checkout, inside)
    run = partial(run_night, ["bash", "job"], checkout)
    without = run(environment, checkout).ended(2)
    assert "box: command not found\n" in without.output
    assert "gpuscale does not run in the container; choose an image that has it" in without.output
    environment["PATH"] = f"{checkout}/stand-ins:{environment['PATH']}"
    # An image without gpuscale, such as one that is not found, ends before anything is measured.
    write_program(checkout / "stand-ins/box", "#!/bin/bash\nexit 1\n")
    assert run(environment, checkout).exit_code == 2
    assert not (checkout / "calls/pytest").exists()
    box = f'#!/bin/bash\nshift\nIN_A_BOX=1 PATH="{checkout}/.venv/bin:/usr/bin:/bin" exec "$@"\n'
    write_program(checkout / "stand-ins/box", box)
    night = run(environment, checkout).ended(4)
    seen = night.environment()
    assert (seen["IN_A_BOX"], seen["PROXY"]) == ("1", "a b")
    (told,) = night.calls("told")
    assert told.startswith("4, it's all was measured, nothing failed; not judged yet: ")
    assert told.endswith("exit code 4 is expected until 4 nights are kept")
    (checkout / "own.toml").unlink()
    (checkout / "job").write_text(script.replace("export PROXY", "false; export PROXY"))
    assert run({**environment, "SLURM_JOB_ID": "4712"}, checkout).exit_code == 2


def test_a_baseline_that_is_not_there_ends_the_night_before_it_measures(checkout: Path) -> None:
    (checkout / "baselines/arc4.json").unlink()
    night = run_script(checkout, "arc4.sge")
    assert (night.exit_code, night.calls("pytest")) == (2, [])
    assert "arc4.json" in night.output


def test_two_nights_never_share_a_directory_which_keeps_the_baseline(checkout: Path) -> None:
    night = run_script(checkout, "arc4.sge").ended()
    judged_against = (checkout / "baselines/arc4.json").read_text()
    assert (night.directory / "baseline.json").read_text() == judged_against
    again = run_script(checkout, "arc4.sge").ended(2)
    assert len(again.calls("pytest")) == 1


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


@pytest.mark.scheduler
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
