"""Nights as they are run: what is tried again, what is recorded, and with what code they end.

Its pytest is a stand-in, as in test_ci.py, but where a case says otherwise.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import builders as make
import ci_checkout
import pytest
from changing import replace
from ci_checkout import Night, job_environment, make_checkout, run_night, write_program
from commands import is_living
from hosts import within_limit
from measuring import REPOSITORY, run_pytest, write_case

from gpuscale.campaigns.night.night_job import run_on_verdict
from gpuscale.campaigns.night.outcome import read_items
from gpuscale.records import Failure, Run
from gpuscale.store.campaign_folders import NightRecord
from gpuscale.store.results import leave_out

INCOMPLETE = "not everything was measured; of what was measured: ok"
PAGES = {"PYTHONPATH": str(REPOSITORY)}
"""The variables of a night that writes pages, which takes a second; in a job it could not."""


def test_items_that_need_no_run_are_told_from_those_that_cannot_be_measured(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    quick = ("--device", "cpu", "--run-seconds", "0.05", "--junitxml", "items.xml")
    first = ("--gpus", "1", "--runs", "6", "--results", "n.jsonl")
    run_pytest(tmp_path, *quick, *first).ended()
    more = ("--gpus", "1,4096", "--runs", "7", "--resume", "n.jsonl")
    session = run_pytest(tmp_path, *quick, *more)
    found = read_items(tmp_path / "items.xml")
    assert "measured before, in n.jsonl" in session.output
    ((reason, kind),) = found.left_out.items()
    assert "4096 CPU ranks need as many cores" in reason
    assert (found.count, kind) == (8, "cannot be measured")


@pytest.mark.parametrize(
    ("test", "code", "pytest_code", "meaning"),
    [
        ("import no_such_module\n", 2, 2, "it could not be run or judged"),
        ("def test_x(no_such_fixture):\n    pass\n", 5, 1, INCOMPLETE),
        ("def test_x():\n    raise KeyboardInterrupt\n", 5, 2, INCOMPLETE),
        ("raise KeyboardInterrupt\n", 4, 2, "nothing was measured"),
    ],
)
def test_a_case_that_cannot_be_imported_is_told_from_an_interrupt_by_real_pytest(
    tmp_path: Path, test: str, code: int, pytest_code: int, meaning: str
) -> None:
    root = make_checkout(tmp_path)
    ci_checkout.use_real_pytest(root, test)
    words = f"ci/nightly.sh here {ci_checkout.JOB} measure bench_cases compare baselines/arc4.json"
    night = run_night(words.split(), root, job_environment(root, {}), root).ended(code)
    record = record_of(night)
    assert f"night: {meaning}\nexit: {code}\npytest exit: {pytest_code}\n" in record
    assert ("not collected: bench_cases.test_mnist_cnn\n" in record) == (code == 2)


SIGKILL = "rank 1 on n2 was killed by SIGKILL"
KILLED = Failure(kind="killed", message=SIGKILL, rank=1, host="n2")
BROKEN = replace(make.run(2, None, index=4), failure=KILLED)


def results_of(checkout: Path, name: str, step_time_s: float, *further: Run) -> None:
    runs = [make.run(gpus, step_time_s, index=index) for gpus in (1, 2) for index in (1, 2, 3)]
    (checkout / name).write_text(make.results_text(make.results(*runs, *further)))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose pytest measures well, except that a node fails in the first attempt."""
    root = make_checkout(tmp_path)
    results_of(root, "measured", 0.1)
    results_of(root, "measured.1", 0.1, BROKEN)
    (root / "measured.1.exit").write_text("1")
    return root


def night_in(checkout: Path, **settings: str) -> Night:
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured"), **settings})
    environment["PATH"] = f"{checkout}/stand-ins:{environment['PATH']}"
    words = f"ci/nightly.sh here {ci_checkout.JOB} measure x compare baselines/arc4.json"
    command = [*words.split(), "--case", "mnist_cnn", "--gpus", "1,2"]
    return run_night(command, checkout, environment, checkout)


def plain_night(checkout: Path, words: str, measured: str = "measured", **more: str) -> Night:
    """A night in that checkout with its own words, and without the commands of a scheduler."""
    environment = job_environment(checkout, {"MEASURED": str(checkout / measured), **more})
    return run_night(f"ci/nightly.sh here {words}".split(), checkout, environment, checkout)


def measured_on(checkout: Path, day: int, time_s: float, *faults: str) -> None:
    """Write what the pytest of a checkout measures in the job of a day."""
    runs = [make.run(1, time_s * (1 + n / 1000), index=n) for n in (1, 2, 3)]
    runs = [replace(run, started_at_s=1.7e9 + 86400 * day) for run in runs]
    made = make.results(*runs, where=make.environment(job_id=str(day)))
    (checkout / "night").write_text(make.results_text(replace(made, injections=faults)))


def record_of(night: Night) -> str:
    return (night.directory / "night.txt").read_text()


def test_after_a_fault_what_is_missing_is_tried_once_more(checkout: Path) -> None:
    night = night_in(checkout).ended()
    tried, again = night.calls("pytest")
    assert "--results" in tried
    assert "--resume" in again
    assert "night: ok\n" in record_of(night)
    assert "attempts: 2\n" in record_of(night)
    fault = "infrastructure: mnist_cnn/ddp on 2 GPUs, run 4: rank 1 on n2 was killed by SIGKILL\n"
    assert fault in record_of(night)
    assert (night.directory / "pytest.log").read_text() == "measuring\n" * 2


def test_a_night_without_a_job_names_its_folder_by_the_time_and_claims_none(checkout: Path) -> None:
    night = plain_night(checkout, "measure x compare baselines/arc4.json")
    (folder,) = (checkout / ".gpuscale/nightly/here").glob("20??-??-??_??????")
    record = json.loads((folder / "night.json").read_text())
    assert (record["host"] is not None, record["job"]) == (True, None)
    assert record["gpuscale"] == NightRecord.own_build()
    assert "job: " not in (folder / "night.txt").read_text()
    first, second, *_ = night.output.splitlines()
    assert first == "gpuscale night: will be judged against baselines/arc4.json"
    assert second == "measuring"


def test_a_night_is_judged_by_the_nights_before_it_in_its_own_folder(checkout: Path) -> None:
    nights = ".gpuscale/nightly/here"
    failed = checkout / nights / "2026-01-01_0/results.jsonl"
    failed.parent.mkdir(parents=True)
    failed.write_text(make.results_text(make.results(BROKEN)))
    for job, time_s, code in ((1, 0.1, 4), (2, 0.1, 4), (3, 0.1, 0), (4, 0.1, 0), (5, 0.15, 1)):
        measured_on(checkout, job, time_s)
        words = f"{job} measure x compare --gpus 1 --history {nights}"
        has_page = job in (3, 5)
        night = plain_night(checkout, words, "night", **(PAGES if has_page else {})).ended(code)
        assert f"night: will be judged against {nights}\nmeasuring" in night.output
        (folder,) = (checkout / nights).glob(f"*_{job}")
        if code == 4:
            assert "; exit code 4 is expected of a first night (exit 4)" in night.output
            if job == 1:
                leave_out(folder / "results.jsonl", "rain")
            continue
        comparison = (folder / "comparison.txt").read_text()
        assert comparison.startswith("REGRESSED " if code else "ok ")
        assert "(rain)" in comparison
        if has_page:
            tone = "loss" if code else "pass"
            assert f'class="verdict {tone}"' in (folder / "report.html").read_text()


def test_a_night_with_an_injected_fault_is_called_so_and_judges_no_other(checkout: Path) -> None:
    nights = checkout / ".gpuscale/nightly/here"
    fault = "has injected faults (compute=1.4)"
    warning = "INJECTED compute=1.4: not a real result; "
    of_nights = ((1, 0.1, 1, 4), (2, 0.1, 0, 4), (3, 0.15, 1, 1), (4, 0.1, 0, 0))
    for job, time_s, faults, code in of_nights:
        measured_on(checkout, job, time_s, *["compute=1.4"] * faults)
        words = f"{job} measure x compare --history {nights}"
        night = plain_night(checkout, words, "night", **(PAGES if job == 4 else {})).ended(code)
        (folder,) = nights.glob(f"*_{job}")
        *_, last = (line for line in night.output.splitlines() if "jinja2" not in line)
        assert last.startswith(f"gpuscale night: {warning}") == faults
        assert f"night: {warning}" in (folder / "night.txt").read_text() or not faults
        assert warning in json.loads((folder / "night.json").read_text())["night"] or not faults
        of_first = f"gpuscale: left out: {nights}/{folder.name[:10]}_1/results.jsonl: {fault}"
        assert night.output.count(of_first) == (job > 2)
    index = (nights / "index.html").read_text()
    assert index.count(warning) == 2
    assert index.count(f"left out: {fault}") == 2


def test_a_night_without_a_baseline_has_not_failed_and_says_how_to_go_on(checkout: Path) -> None:
    (checkout / "measured.1").unlink()
    (checkout / "measured.1.exit").unlink()
    collecting = "exit code 4 is expected until 4 nights are kept (exit 4); kept in"
    told = {n: f"night {n} of 4; {collecting}" for n in (1, 3)}
    for job, words in {**told, 5: "'compare --history .gpuscale/"}.items():
        for old in range(1, job):
            folder = checkout / f".gpuscale/nightly/here/2026-01-0{old}_{old}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / "measured", folder / "results.jsonl")
        if job == 3:
            # A night that was left out is none of those that are kept.
            leave_out(folder / "results.jsonl", "a fan failed")
        night = plain_night(checkout, f"{job} measure x").ended(4)
        assert "all was measured, nothing failed; not judged yet: " in night.output
        assert words in night.output


def test_a_folder_of_nights_that_does_not_exist_is_refused_before_measuring(checkout: Path) -> None:
    said = plain_night(checkout, "measure x compare --history .gpuscale/nightly/her").ended(2)
    assert (
        "her: there is no such folder; nights of here are in .gpuscale/nightly/here" in said.output
    )
    assert "measuring" not in said.output
    first = plain_night(checkout, "measure x compare --history .gpuscale/nightly/here").ended(4)
    assert "exit code 4 is expected of a first night" in first.output


@pytest.mark.parametrize("options", ["--histroy x", "--format jsn"])
def test_an_option_that_compare_lacks_is_refused_before_measuring(
    checkout: Path, options: str
) -> None:
    said = plain_night(checkout, f"measure x compare b.json {options}").ended(2)
    assert "did you mean" in said.output
    assert "measuring" not in said.output
    assert not (checkout / ".gpuscale" / "nightly").exists()


def test_a_night_without_jinja2_leaves_no_page_and_says_so(checkout: Path) -> None:
    night = night_in(checkout, MEASURED=str(checkout / "verdict-0.jsonl")).ended()
    assert "pip install jinja2" in night.output
    assert "the night has no report.html" in night.output
    assert "night: ok\n" in record_of(night)


def test_infrastructure_that_fails_twice_is_no_regression(checkout: Path) -> None:
    for name in ("measured.2", "measured.2.exit"):
        (checkout / name).write_text((checkout / name.replace("2", "1")).read_text())
    night = night_in(checkout).ended(6)
    assert len(night.calls("pytest")) == 2
    assert "night: infrastructure failed\n" in record_of(night)
    assert "infrastructure: mnist_cnn/ddp on 2 GPUs, run 4: rank 1 on n2" in record_of(night)
    assert "compare exit: 0\n" in record_of(night)


@pytest.mark.parametrize(("ending", "recorded"), [("", "told"), ("; exit 3", "ended with 3")])
def test_a_sites_command_gets_the_verdict(checkout: Path, ending: str, recorded: str) -> None:
    results_of(checkout, "measured.1", 0.2)
    (checkout / "measured.1.exit").write_text("0")
    command = f'cat >"$CALLS/said"; ls "$GPUSCALE_NIGHT_FOLDER" >"$CALLS/kept"{ending}'
    night = night_in(checkout, GPUSCALE_ON_VERDICT=command).ended(1)
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
    child = int((tmp_path / "child").read_text())
    assert within_limit(lambda: not is_living(child)), "the command's child goes on"


def test_a_broken_environment_is_never_a_regression(checkout: Path) -> None:
    # Python ends with 1 when a package cannot be imported.
    write_program(checkout / ".venv/bin/gpuscale", "#!/bin/bash\nexit 1\n")
    assert night_in(checkout).exit_code == 2


def test_a_night_runs_the_pytest_of_its_own_environment(tmp_path: Path) -> None:
    foreign = tmp_path / "bin"
    foreign.mkdir()
    write_program(foreign / "pytest", "#!/bin/sh\necho another pytest\n")
    environment = {"PATH": f"{foreign}:{os.environ['PATH']}", "GPUSCALE_NIGHTLY_DIR": "nights"}
    # As cron starts it, whose PATH has not the environment.
    gpuscale = str(Path(sys.executable).with_name("gpuscale"))
    run_night([gpuscale, "night", "n", "measure", "--version"], tmp_path, environment, tmp_path)
    (log,) = tmp_path.glob("nights/n/*/pytest.log")
    assert log.read_text().startswith("pytest ")


def test_a_night_whose_disk_is_full_still_ends_with_its_code(checkout: Path) -> None:
    # Its record goes to a device that is always full.
    script = '#!/bin/bash\ncp "$MEASURED" "$3"; ln -s /dev/full "$(dirname "$3")/night.txt"\n'
    write_program(checkout / ".venv/bin/pytest", script)
    night = night_in(checkout).ended(5)
    assert "night.txt cannot be written (No space left on device)" in night.output
    assert "pytest exit: 0" in night.output
