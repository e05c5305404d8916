"""Nights as they are run: what is tried again, what is recorded, and with what code they end.

Its pytest is a stand-in, as in test_ci.py, but where a case says otherwise.
"""

import json
import shutil
import time
from pathlib import Path

import builders as make
import pytest
from changing import replace
from ci_checkout import (
    JOB,
    REPOSITORY,
    Night,
    job_environment,
    make_checkout,
    run_night,
    use_real_pytest,
    write_program,
    write_results,
)
from commands import is_living
from measuring import TIMEOUT_S, run_pytest, write_case

from gpuscale.campaigns.night.attempt import read_items
from gpuscale.campaigns.night.programs import run_on_verdict
from gpuscale.measure.schedulers.placement import EXCLUDED_HOSTS
from gpuscale.records import Failure, Run

STEADY = """
import time

class Case(Tiny):
    def loss(self, output, target):
        time.sleep(0.02)
        return super().loss(output, target)
"""
"""A case whose step time hardly depends on what else runs on the machine."""


def test_items_that_need_no_run_are_told_from_those_that_cannot_be_measured(tmp_path: Path) -> None:
    write_case(tmp_path, STEADY)
    quick = ("--device", "cpu", "--run-seconds", "0.05", "--junitxml", "items.xml")
    wide = ("--runs", "6:7", "--target-ci", "99%")
    session = run_pytest(tmp_path, *quick, *wide, "--gpus", "1,4096")
    found = read_items(tmp_path / "items.xml")
    assert "settled after 6 runs" in session.output
    (reason,) = found.left_out
    assert "4096 CPU ranks need as many cores" in reason
    assert (found.count, found.gpus_missing) == (8, ())


@pytest.mark.parametrize(
    ("test", "code", "pytest_code", "meaning"),
    [
        ("import no_such_module\n", 2, 2, "it could not be run or judged"),
        ("def test_x(no_such_fixture):\n    pass\n", 5, 1, "not everything was measured"),
        ("def test_x():\n    raise KeyboardInterrupt\n", 5, 2, "not everything was measured"),
        ("raise KeyboardInterrupt\n", 4, 2, "nothing was measured"),
    ],
)
def test_a_case_that_cannot_be_imported_is_told_from_an_interrupt_by_real_pytest(
    tmp_path: Path, test: str, code: int, pytest_code: int, meaning: str
) -> None:
    root = make_checkout(tmp_path)
    use_real_pytest(root, test)
    words = f"ci/nightly.sh here {JOB} measure bench_cases compare baselines/arc4.json"
    night = run_night(words.split(), root, job_environment(root, {}), root)
    assert night.exit_code == code, night.output
    record = record_of(night)
    assert f"night: {meaning}\nexit: {code}\npytest exit: {pytest_code}\n" in record
    assert ("not collected: bench_cases.test_mnist_cnn\n" in record) == (code == 2)


BROKEN = replace(
    make.run(2, None, index=4),
    failure=Failure(kind="killed", message="rank 1 on n2 was killed by SIGKILL", rank=1, host="n2"),
)


def results_of(checkout: Path, name: str, step_time_s: float, *further: Run) -> None:
    runs = [make.run(gpus, step_time_s, index=index) for gpus in (1, 2) for index in (1, 2, 3)]
    write_results(checkout / name, make.results(*runs, *further))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose pytest measures well, except that a node fails in the first attempt."""
    root = make_checkout(tmp_path)
    results_of(root, "measured", 0.1)
    results_of(root, "measured.1", 0.1, BROKEN)
    (root / "measured.1.exit").write_text("1")
    return root


def night_in(checkout: Path, **settings: str) -> Night:
    """A night of that checkout, with what a scheduler would set."""
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured"), **settings})
    environment["PATH"] = f"{checkout}/stand-ins:{environment['PATH']}"
    words = f"ci/nightly.sh here {JOB} measure x compare baselines/arc4.json"
    command = [*words.split(), "--case", "mnist_cnn", "--gpus", "1,2"]
    return run_night(command, checkout, environment, checkout)


def record_of(night: Night, attempt: str = ".") -> str:
    return (night.directory / attempt / "night.txt").read_text()


def test_a_failure_of_the_only_node_is_tried_once_more_in_place_and_kept(checkout: Path) -> None:
    night = night_in(checkout)
    assert night.exit_code == 0, night.output
    first, second = night.calls("pytest")
    assert "--results" in first
    assert "--resume" in second
    assert "night: ok\n" in record_of(night)
    assert "attempts: 2, see attempt-1\n" in record_of(night)
    evidence = json.loads((night.directory / "attempt-1/evidence.json").read_text())
    assert evidence["hosts"] == ["node1"]
    assert evidence["gpu_uuids_used"] == ["GPU-0", "GPU-1"]
    assert [fault["host"] for fault in evidence["faults"]] == ["n2"]
    assert (night.directory / "attempt-1/pytest.log").read_text() == "measuring\n"
    kept = (night.directory / "attempt-1/results.jsonl").read_text()
    assert kept == (checkout / "measured.1").read_text()


def test_a_night_without_a_job_is_named_by_the_time_and_shows_no_baseline(checkout: Path) -> None:
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured")})
    words = ["ci/nightly.sh", "here", "measure", "x", "compare", "baselines/arc4.json"]
    night = run_night(words, checkout, environment, checkout)
    folders = (checkout / ".gpuscale/nightly/here").glob("20??-??-??_??????")
    assert [folder.is_dir() for folder in folders] == [True], night.output
    assert night.output.startswith("gpuscale night: judged against baselines/arc4.json\nmeasuring")


def test_a_night_leaves_a_page_and_an_index_if_jinja2_is_there(checkout: Path) -> None:
    night = night_in(checkout, MEASURED=str(checkout / "verdict-0.jsonl"))
    assert night.exit_code == 0, night.output
    assert "pip install jinja2" in night.output
    assert "the night has no report.html" in night.output
    assert "night: ok\n" in record_of(night)
    shutil.rmtree(night.directory)
    night = night_in(
        checkout, MEASURED=str(checkout / "verdict-0.jsonl"), PYTHONPATH=str(REPOSITORY)
    )
    assert night.exit_code == 0, night.output
    assert 'class="verdict pass"' in (night.directory / "report.html").read_text()
    index = (night.directory.parent / "index.html").read_text()
    assert f'href="{night.directory.name}/report.html"' in index


def test_infrastructure_that_fails_twice_is_no_regression(checkout: Path) -> None:
    for name in ("measured.2", "measured.2.exit"):
        (checkout / name).write_text((checkout / name.replace("2", "1")).read_text())
    night = night_in(checkout)
    assert night.exit_code == 6, night.output
    assert len(night.calls("pytest")) == 2
    assert "night: infrastructure failed\n" in record_of(night)
    assert "infrastructure: mnist_cnn/ddp on 2 GPUs, run 4: rank 1 on n2" in record_of(night)
    assert "compare exit: 0\n" in record_of(night)


def test_a_job_on_several_nodes_tries_again_without_the_bad_one(checkout: Path) -> None:
    write_program(checkout / "stand-ins/scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\nn3\\n'\n")
    write_program(checkout / "stand-ins/sbatch", "#!/bin/bash\necho not enough nodes >&2; exit 1\n")
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "n[1-3]", "GPUSCALE_JOB_SCRIPT": "script"}
    night = night_in(checkout, **slurm)
    assert night.exit_code == 0, night.output
    assert "trying once more, without n2" in night.output
    assert night.environment()[EXCLUDED_HOSTS] == "n2"
    # What was measured beside a node that failed is not mixed with the rest.
    assert "--results" in night.calls("pytest")[1]


def test_a_job_that_is_submitted_again_leaves_the_verdict_to_the_next(checkout: Path) -> None:
    slurm = in_a_slurm_job(checkout)
    first = night_in(checkout, **slurm)
    assert first.exit_code == 6, first.output
    assert "retried as: 4712\n" in record_of(first, "attempt-1")
    assert "--exclude=n2 --export=ALL --time=01:00:00 script" in (checkout / "again").read_text()
    assert not (first.directory / "night.txt").exists()
    second = night_in(checkout, GPUSCALE_RETRY_OF=str(first.directory), **slurm)
    assert second.exit_code == 0, second.output
    assert "attempts: 2, see attempt-1\n" in record_of(second)
    assert len(list(first.directory.parent.glob("*_*"))) == 1


def in_a_slurm_job(checkout: Path) -> dict[str, str]:
    """A job on n2: its variables, and a Slurm that takes it once more as 4712."""
    write_program(
        checkout / "stand-ins/scontrol",
        "#!/bin/bash\n[ $1 = show ] && echo n2 || echo JobId=4711 TimeLimit=01:00:00\n",
    )
    write_program(
        checkout / "stand-ins/sbatch", f'#!/bin/bash\necho "$*" >"{checkout}/again"; echo 4712\n'
    )
    return {"SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "n2", "GPUSCALE_JOB_SCRIPT": "script"}


@pytest.mark.parametrize(("second", "code"), [("well", 0), ("measures nothing", 1), ("fails", 1)])
def test_a_regression_of_the_first_job_stands(checkout: Path, second: str, code: int) -> None:
    results_of(checkout, "measured.1", 0.2, BROKEN)
    slurm = in_a_slurm_job(checkout)
    first = night_in(checkout, **slurm)
    assert first.exit_code == 1, first.output
    record = record_of(first, "attempt-1")
    assert "night: regressed, and infrastructure failed; submitted once more as job 4712" in record
    assert "exit: 1\n" in record
    assert "regressed" in (first.directory / "attempt-1/comparison.txt").read_text()
    if second != "well":
        (checkout / "measured.2.exit").write_text("1")
    measured = {"MEASURED": "nothing"} if second == "measures nothing" else {}
    last = night_in(checkout, GPUSCALE_RETRY_OF=str(first.directory), **slurm, **measured)
    assert last.exit_code == code, last.output
    assert ("by what the first attempt measured: see attempt-1" in record_of(last)) == bool(code)


@pytest.mark.parametrize(("ending", "recorded"), [("", "told"), ("; exit 3", "ended with 3")])
def test_a_sites_command_gets_the_verdict(checkout: Path, ending: str, recorded: str) -> None:
    results_of(checkout, "measured.1", 0.2)
    (checkout / "measured.1.exit").write_text("0")
    command = f'cat >"$CALLS/said"; ls "$GPUSCALE_NIGHT_FOLDER" >"$CALLS/kept"{ending}'
    night = night_in(checkout, GPUSCALE_ON_VERDICT=command)
    assert night.exit_code == 1, night.output
    (said, kept) = ("\n".join(night.calls(name)) for name in ("said", "kept"))
    assert json.loads(said) == json.loads((night.directory / "comparison.json").read_text())
    assert json.loads(said)["exit_code"] == 1
    assert {"night.txt", "comparison.prom", "results.jsonl"} <= set(kept.split())
    assert record_of(night).endswith(f"on verdict: {recorded}\n")
    assert ("GPUSCALE_ON_VERDICT: the command ended with 3" in night.output) == bool(ending)


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    command = f"sleep 600 & echo $! >{tmp_path}/child; wait"
    problem = run_on_verdict(command, tmp_path / "none", code=0, meaning="ok", end_s=2)
    assert problem == "did not end within 2 s and was killed"
    child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + TIMEOUT_S
    while is_living(child):
        assert time.monotonic() < deadline, "the command's child goes on"
        time.sleep(0.01)


def test_a_broken_environment_is_never_a_regression(checkout: Path) -> None:
    # Python ends with 1 when a package cannot be imported.
    write_program(checkout / ".venv/bin/gpuscale", "#!/bin/bash\nexit 1\n")
    assert night_in(checkout).exit_code == 2


def test_a_night_whose_disk_is_full_still_ends_with_its_code(checkout: Path) -> None:
    # Its record goes to a device that is always full.
    write_program(
        checkout / ".venv/bin/pytest",
        '#!/bin/bash\ncp "$MEASURED" "$3"; ln -s /dev/full "$(dirname "$3")/night.txt"\n',
    )
    night = night_in(checkout)
    assert night.exit_code == 5, night.output
    assert "night.txt cannot be written (No space left on device)" in night.output
    assert "pytest exit: 0" in night.output
