"""Faults of files, memory and time in a night: each is done for real, nothing is lost.

Ranks that are killed, hang or lack memory are in test_faults.py, nodes that die in the tests of
the launchers, and results files that two sessions want to append to in test_resume.py.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ci_checkout import REPOSITORY
from command_line import python, ran
from commands import PRELUDE, gpuscale
from measuring import command_case, pytest_command, run_pytest, without_torchvision, write_case
from warm_sessions import TIMEOUT_S

from gpuscale.store.results import read_results

QUICK = ("--gpus", "1", "--device", "cpu", "--run-seconds", "0.05")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system in memory; the test is skipped if it cannot be mounted."""
    folder.mkdir()
    tried = ran("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount a file system here (needs root): {tried.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def wait_for_runs(nights: Path, count: int, night: "subprocess.Popen[str]") -> Path:
    """Wait until the results of a night have this number of runs, and return their file."""
    while night.poll() is None:
        for path in nights.glob("here/*/results.jsonl"):
            if len(path.read_text().splitlines()) > count:
                return path
        time.sleep(0.05)
    pytest.fail(f"the night ended before: {night.communicate()[0]}")


def test_a_full_disk_ends_the_session_and_keeps_every_run_before(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    with mounted(tmp_path / "small", "size=16k") as small:
        asked = (*QUICK, "--runs", "30", "--results", str(small / "results.jsonl"))
        session = run_pytest(tmp_path, *asked).ended(74)
        assert "No space left on device; free some space" in session.output
        assert "earlier runs are kept" in session.output
        kept = read_results(small / "results.jsonl").runs
        assert 1 <= len(kept) < 30
        assert len(kept) == session.output.count("PASSED")
        assert all(run.is_valid for run in kept)


def test_a_read_only_folder_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    with mounted(tmp_path / "fixed", "ro,size=16k") as fixed:
        asked = (*QUICK, "--results", str(fixed / "night/results.jsonl"))
        session = run_pytest(tmp_path, *asked).ended(4)
        assert f"{fixed}: Read-only file system; choose another folder" in session.output


@pytest.mark.thorough
def test_two_jobs_in_one_folder_keep_all_runs_of_both(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    words = pytest_command(*QUICK, "--runs", "1")
    both = [subprocess.Popen(words, cwd=tmp_path) for _ in range(2)]
    assert [process.wait(timeout=TIMEOUT_S) for process in both] == [0, 0]
    first, second = (tmp_path / ".gpuscale/results").glob("*.jsonl")
    for path in (first, second):
        assert [run.is_valid for run in read_results(path).runs] == [True]


def start_night(folder: Path, *options: str) -> "subprocess.Popen[str]":
    """A night in a process group of its own, as a scheduler would start it."""
    variables = {
        "GPUSCALE_NIGHTLY_DIR": str(folder / "nights"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **without_torchvision(folder),
    }
    words = ("night", "here", "1", "measure", *QUICK, "-p", "no:cacheprovider", *options)
    return gpuscale(folder, *words, env=os.environ | variables, start_new_session=True)


def write_command(folder: Path, *after_its_run: str) -> None:
    """A case whose runs import no torch; what its test does after a run may follow."""
    (folder / "train.py").write_text(f"{PRELUDE}steps(range(10**6))\n")
    case = command_case("Train", f"{sys.executable} train.py", batch=8)
    (folder / "test_train.py").write_text("".join([case, *after_its_run]))


def test_a_signal_after_the_last_run_leaves_a_night_complete(tmp_path: Path) -> None:
    # As Slurm does at the time limit: every process of the job gets it.
    write_command(tmp_path, "    import os, signal\n", "    os.killpg(0, signal.SIGTERM)\n")
    night = start_night(tmp_path, "--runs", "1")
    output, _ = night.communicate(timeout=TIMEOUT_S)
    assert night.returncode == 4, output
    assert "all was measured, nothing failed; not judged yet" in output
    assert "stopped by" not in output


def test_a_night_whose_time_is_up_keeps_what_it_has(tmp_path: Path) -> None:
    write_command(tmp_path)
    baseline = str(REPOSITORY / "baselines/arc4.json")
    night = start_night(tmp_path, "--runs", "300", "compare", baseline)
    results = wait_for_runs(tmp_path / "nights", 2, night)
    os.killpg(night.pid, signal.SIGTERM)
    output, _ = night.communicate(timeout=TIMEOUT_S)
    assert night.returncode == 5, output
    assert "not everything was measured; stopped by SIGTERM" in output
    record = (results.parent / "night.txt").read_text()
    assert {"exit: 5", "attempts: 1", "compare exit: 4"} <= {*record.splitlines()}
    before = read_results(results).runs
    assert len(before) >= 2
    assert all(run.is_valid for run in before)


BEGIN = """
import os, signal, sys
from pathlib import Path
from gpuscale.base.errors import UsageError
from gpuscale.campaigns.night import outcome

outcome.PASSED_ON_S = 0.1
stop, log = outcome.StopRequest(), Path(sys.argv[1])
def run(*words):
    return stop.run(words, log, {**os.environ, "SAID": "heard"})
"""


def done(script: str, log: Path) -> list[str]:
    """Run a script after BEGIN, and return the lines that it printed."""
    answer = python("-c", BEGIN + textwrap.dedent(script), log)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_the_output_of_a_program_is_shown_and_kept(tmp_path: Path) -> None:
    script = """
        print(run("sh", "-c", "echo $SAID; echo too >&2; exit 3"), flush=True)
        print(run("sh", "-c", "kill -9 $$"), stop.number)
    """
    assert done(script, tmp_path / "log") == ["heard", "too", "3", "-9 None"]
    assert (tmp_path / "log").read_text() == "heard\ntoo\n"
    # A log that cannot be written costs nothing else.
    assert done(script, tmp_path / "absent" / "log") == ["heard", "too", "3", "-9 None"]


def test_the_output_of_a_program_is_kept_while_it_runs(tmp_path: Path) -> None:
    script = """
        look = "for n in $(seq 600); do grep -qs begun $0 && exit 7; sleep 0.1; done"
        print(run("sh", "-c", f"echo begun; {look}", str(log)))
    """
    assert done(script, tmp_path / "log") == ["begun", "7"]


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    script = """
        try:
            run("no-such-pytest", "--option")
        except UsageError as error:
            print(error)
    """
    (said,) = done(script, tmp_path / "log")
    assert said.startswith("no-such-pytest cannot be started (No such file or directory); run")


def test_a_night_asked_to_end_ends_its_program_and_knows_who_asked_first(tmp_path: Path) -> None:
    # While the program runs, and before.
    script = """
        print(run("sh", "-c", "kill -INT $PPID; exec sleep 600"), stop.number)
        stop = outcome.StopRequest()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        print(run("sleep", "600"), stop.number)
    """
    ended = f"{-signal.SIGTERM}"
    asked_by = (signal.SIGINT, signal.SIGUSR1)
    assert done(script, tmp_path / "log") == [f"{ended} {number:d}" for number in asked_by]
