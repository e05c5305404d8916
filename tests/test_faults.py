"""What a night brings to the ranks: each fault is done for real, and nothing stays behind."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hosts import processes_in, within_limit
from measuring import (
    REPOSITORY,
    Session,
    heed_interrupts,
    on_rank,
    pytest_command,
    run_pytest,
    start_pytest,
    without_torchvision,
    write_case,
)
from statements import known
from warm_sessions import TIMEOUT_S

ONE_RUN = ("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1")

HANGS = on_rank(1, "open('hangs', 'w').close(); time.sleep(600)", name="Hangs")

# Each fails in its own way, in a file of its own.
FAILING = {
    "raises": on_rank(1, "raise ValueError('no such batch')", name="Raises"),
    "killed": on_rank(1, "os.kill(os.getpid(), signal.SIGKILL)", name="Killed"),
    "spoils": on_rank(1, "os.kill(os.getppid(), signal.SIGKILL)", name="Spoils"),
    # Calling the module inside DDP is the classic way to lose the gradient synchronisation.
    "apart": """
class Apart(Tiny):
    def forward(self, model, inputs):
        return model.module(inputs)

Case = Apart
""",
    "diverging": """
class Diverging(Tiny):
    def optimizer(self, model, gpus):
        return torch.optim.SGD(model.parameters(), lr=float("inf"))

Case = Diverging
""",
    "unbuildable": """
class Unbuildable(Tiny):
    def model(self):
        return 1 / 0

Case = Unbuildable
""",
    "too_large": """
import os, resource

class TooLarge(Tiny):
    def model(self):
        if os.environ["RANK"] == "1":
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
            self.too_much = torch.zeros(2**28)
        return super().model()

Case = TooLarge
""",
    "well": "class Well(Tiny):\n    pass\n\nCase = Well",
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Run a session of cases that fail, and of a last one that does not."""
    folder = tmp_path_factory.mktemp("failing")
    for name, case in FAILING.items():
        write_case(folder, case, name=f"test_{name}.py")
    forgetful = write_case(folder, "class Case(Tiny):\n    pass", name="test_forgetful.py")
    forgetful.write_text(forgetful.read_text().replace("    scaling()", "    pass"))
    paths = [f"test_{name}.py" for name in ("forgetful", *FAILING)]
    return run_pytest(folder, *paths, *ONE_RUN)


def start(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start pytest as a terminal does; its output goes to `log` in the folder."""
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            pytest_command(*arguments),
            cwd=folder,
            env={**os.environ, **without_torchvision(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )


@pytest.mark.parametrize(
    ("case", "kind", "rank", "words"),
    [
        ("raises", "raised", 1, "rank 1 raised ValueError: no such batch"),
        ("killed", "killed", 1, "rank 1 was killed by SIGKILL"),
        ("spoils", "launch", None, "the process that forks the ranks ended"),
        ("apart", "invalid", None, "the parameters of 2 ranks differ after training"),
        ("diverging", "invalid", None, "(not finite: the loss, parameter weight); choose"),
        ("unbuildable", "raised", None, "raised ZeroDivisionError"),
        ("too_large", "out_of_memory", 1, "ran out of memory with a batch of 8 per GPU; give it"),
    ],
)
def test_a_case_that_fails_is_recorded_as_what_it_is(
    failing: Session, case: str, kind: str, rank: int | None, words: str
) -> None:
    (run,) = [run for run in failing.results.runs if run.configuration.case == case]
    failure = known(run.failure)
    assert not run.is_valid
    assert failure.kind == kind
    assert rank in (None, failure.rank)
    assert words in failing.output


def test_what_fails_shows_where_and_the_next_item_runs(failing: Session) -> None:
    assert failing.exit_code == 1, failing.output
    assert 'File "' in failing.output
    assert "in forward" in failing.output
    assert re.findall(r"test_(\w+)\.py\S+ PASSED", failing.output) == ["well"]
    assert "measured nothing" in failing.output
    assert "Benchmark fixture" not in failing.output
    assert processes_in(failing.folder) == []


def test_a_bug_of_a_case_is_shown_for_two_runs_and_ends_the_session(tmp_path: Path) -> None:
    path = write_case(tmp_path, FAILING["unbuildable"])
    line = path.read_text().splitlines().index("        return 1 / 0") + 1
    runs = ("--gpus", "1,2", "--runs", "9", "--device", "cpu")
    # Where this is set, pytest does not cut the messages in its summary.
    session = run_pytest(tmp_path, *runs, CI="true").ended(1)
    output = session.output
    assert output.count("= FAILURES =") == 1, output
    shown = output.split("= FAILURES =")[1]
    first, *below = shown.splitlines()[2:]
    bug = f"test_tiny.py:{line}: rank 0 raised ZeroDivisionError: division by zero"
    assert first == bug, output
    where = [f'File "{path}", line {line}, in model', "return 1 / 0"]
    assert [text.strip() for text in below[1:3]] == where, output
    assert output.count("return 1 / 0") == 1, output
    assert "above, at test_case[ddp-1gpu-run1], which failed in the same way" in output, output
    listed = re.findall(r"^FAILED test_tiny.py::test_case\[ddp-1gpu-run1\] - (.+)$", output, re.M)
    assert listed == [bug], output
    assert re.search(r"by\s+zero; likewise\s+1\s+more\s+run\s", output), output
    assert "16 more runs left out, since they would fail in the same way" in output, output
    assert len(session.results.runs) == 2, output
    places = [shown.index(part) for part in ("short test summary", " scaling -", "results: ")]
    assert places == sorted(places), output
    # What is not known of it is a dash.
    assert re.search(r"^unbuildable/ddp +1 +0 of 1 +– ", shown, re.MULTILINE), output


def test_a_file_that_fails_once_leaves_out_no_further_run(tmp_path: Path) -> None:
    flaky = """
import os

class Flaky(Tiny):
    def model(self):
        if "RANK" in os.environ and not os.path.exists("met"):
            open("met", "w").close()
            raise OSError("the file was being written")
        return super().model()

Case = Flaky
"""
    write_case(tmp_path, flaky)
    runs = ("--gpus", "1", "--runs", "2", "--device", "cpu", "--run-seconds", "0.1")
    session = run_pytest(tmp_path, *runs)
    first, second = session.results.runs
    assert first.failure is not None
    assert second.is_valid, session.output


def test_a_hanging_rank_ends_at_the_timeout_with_its_place(tmp_path: Path) -> None:
    # The longer where a busy machine has not come to the hang by then.
    for limit_s in (10, 60):
        (folder := tmp_path / str(limit_s)).mkdir()
        write_case(folder, HANGS)
        session = run_pytest(folder, *ONE_RUN, "--timeout", str(limit_s))
        if (folder / "hangs").exists():
            break
    assert session.exit_code == 1, session.output
    assert f"not done after {limit_s} s" in session.output
    assert "rank 0 was here" in session.output
    assert re.search(r"rank 1 was here:.*in forward", session.output, re.DOTALL)
    # Of gpuscale's own frames only the innermost one of each rank says something.
    assert session.output.count(f'"{REPOSITORY}/gpuscale/') == 2
    assert processes_in(folder) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_no_process_outlives_a_pytest_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    write_case(tmp_path, HANGS)
    session = start_pytest(tmp_path, *ONE_RUN)
    assert within_limit((tmp_path / "hangs").exists)
    # pytest, the keeper, and two ranks, of which one hangs.
    assert len(processes_in(tmp_path)) >= 4
    session.send_signal(number)
    session.wait()
    assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)


def test_no_loader_process_outlives_a_rank_that_crashed(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    loading = ("--data", "loader", "--data-workers", "2")
    # What outlived the session would hold its output open.
    session = run_pytest(tmp_path, *ONE_RUN, *loading, "--inject", "crash=1@20").ended(1)
    assert "rank 1 was killed by SIGSEGV" in session.output
    assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.5, marks=pytest.mark.thorough)])
def test_interrupting_the_first_seconds_prints_no_traceback(tmp_path: Path, after_s: float) -> None:
    write_case(tmp_path, "Case = Tiny")
    process = start(tmp_path, *ONE_RUN)
    # It has started, and is importing torch.
    assert within_limit(lambda: any("launch.keeper" in words for words in processes_in(tmp_path)))
    time.sleep(after_s)
    # As a terminal does: to every process of the group.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=TIMEOUT_S) == 2
    output = (tmp_path / "log").read_text()
    assert "Traceback" not in output
    assert within_limit(lambda: processes_in(tmp_path) == []), processes_in(tmp_path)


def test_sigterm_ends_the_session_and_not_just_the_run(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    options = ("--gpus", "1", "--runs", "50", "--device", "cpu", "--run-seconds", "0.1")
    session = start_pytest(tmp_path, *options)
    folder = tmp_path / ".gpuscale" / "results"
    assert within_limit(lambda: any(folder.glob("*.jsonl")))
    session.send_signal(signal.SIGTERM)
    code = session.wait()
    output = (tmp_path / "log").read_text()
    # Between two runs the signal ends pytest itself; during one, the session ends in order.
    assert code in (128 + signal.SIGTERM, -signal.SIGTERM), output
    if code > 0:
        assert "ended by SIGTERM; earlier runs are kept" in output
    assert output.count("PASSED") < 50
    assert within_limit(lambda: processes_in(tmp_path) == [])
