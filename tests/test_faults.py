"""What a night brings to the ranks: each fault is done for real, and nothing stays behind."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from measuring import heed_interrupts, pytest_command, run_pytest, write_case

ONE_RUN = ("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1")

# Behaves on rank 1 alone, after the first step, so that rank 0 waits in a collective.
ON_RANK_1 = """
import os, signal, time

class Case(Tiny):
    calls = 0

    def forward(self, model, inputs):
        Case.calls += 1
        if os.environ["RANK"] == "1" and Case.calls == 3:
            {fault}
        return model(inputs)
"""

HEALTHY_NEIGHBOUR = """
class Healthy(Tiny):
    pass

@pytest.mark.gpuscale(case=Healthy)
def test_healthy(scaling):
    scaling()
"""


def processes_of(folder: Path) -> list[int]:
    """Processes that were started in `folder`: pytest, its fork server, ranks and samplers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == folder:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition: Callable[[], bool], patience_s: float = 30) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_a_rank_that_raises_ends_the_item_with_its_traceback_and_the_next_item_runs(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, ON_RANK_1.format(fault="raise ValueError('no such batch')"))
    write_case(tmp_path, HEALTHY_NEIGHBOUR, "Case = Healthy", name="test_healthy.py")
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "rank 1 raised ValueError: no such batch" in session.output
    assert 'File "' in session.output
    assert "in forward" in session.output
    assert re.search(r"test_healthy\[ddp-2gpus-run1\] PASSED", session.output)
    failed = next(run for run in session.results.runs if run.failure is not None)
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.rank) == ("raised", 1)
    assert processes_of(tmp_path) == []


def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    write_case(tmp_path, ON_RANK_1.format(fault="os.kill(os.getpid(), signal.SIGKILL)"))
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "rank 1 was killed by SIGKILL" in session.output
    assert processes_of(tmp_path) == []


def test_a_rank_that_hangs_ends_at_the_timeout_with_the_place_where_each_rank_was(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, ON_RANK_1.format(fault="time.sleep(600)"))
    write_case(tmp_path, HEALTHY_NEIGHBOUR, "Case = Healthy", name="test_healthy.py")
    started = time.monotonic()
    session = run_pytest(tmp_path, *ONE_RUN, "--timeout", "5")
    assert time.monotonic() - started < 120
    assert session.exit_code == 1, session.output
    assert "not done after 5 s" in session.output
    assert "rank 0 was here" in session.output
    assert re.search(r"rank 1 was here:.*in forward", session.output, re.DOTALL)
    assert re.search(r"test_healthy\[ddp-2gpus-run1\] PASSED", session.output)
    assert processes_of(tmp_path) == []


def test_a_stopped_rank_is_ended_too(tmp_path: Path) -> None:
    write_case(tmp_path, ON_RANK_1.format(fault="os.kill(os.getpid(), signal.SIGSTOP)"))
    session = run_pytest(tmp_path, *ONE_RUN, "--timeout", "5")
    assert session.exit_code == 1, session.output
    assert "not done after 5 s" in session.output
    assert processes_of(tmp_path) == []


def test_ranks_that_do_not_train_together_are_caught(tmp_path: Path) -> None:
    # Calling the module inside DDP is the classic way to lose the gradient synchronisation.
    broken = """
class Case(Tiny):
    def forward(self, model, inputs):
        return model.module(inputs)
"""
    write_case(tmp_path, broken)
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "the parameters of 2 ranks differ after training" in session.output
    (run,) = session.results.runs
    assert run.failure is not None
    assert run.failure.kind == "invalid"
    assert not run.is_valid


def test_a_loss_that_is_not_finite_is_caught(tmp_path: Path) -> None:
    diverging = """
class Case(Tiny):
    def optimizer(self, parameters, gpus):
        return torch.optim.SGD(parameters, lr=float("inf"))
"""
    write_case(tmp_path, diverging)
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "is not a finite number" in session.output


def test_a_case_that_cannot_be_built_says_so(tmp_path: Path) -> None:
    write_case(tmp_path, "class Case(Tiny):\n    def model(self):\n        return 1 / 0\n")
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "raised ZeroDivisionError" in session.output


def test_a_test_that_forgets_to_measure_does_not_pass(tmp_path: Path) -> None:
    path = write_case(tmp_path, "Case = Tiny")
    path.write_text(path.read_text().replace("    scaling()", "    pass"))
    session = run_pytest(tmp_path, *ONE_RUN)
    assert session.exit_code == 1, session.output
    assert "measured nothing" in session.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_a_pytest_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    write_case(tmp_path, ON_RANK_1.format(fault="time.sleep(600)"))
    process = subprocess.Popen(
        pytest_command(*ONE_RUN),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # pytest, the fork server (with its resource tracker), and two ranks that hang.
    assert wait_until(lambda: len(processes_of(tmp_path)) >= 4)
    time.sleep(2)
    os.kill(process.pid, number)
    process.wait(timeout=60)
    assert wait_until(lambda: processes_of(tmp_path) == []), processes_of(tmp_path)


def has_fork_server(folder: Path) -> bool:
    """Whether the fork server of a pytest in `folder` runs; pytest's plugins start others."""
    return any(
        b"multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in processes_of(folder)
    )


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_interrupting_the_first_seconds_prints_no_traceback(tmp_path: Path, after_s: float) -> None:
    write_case(tmp_path, "Case = Tiny")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            pytest_command(*ONE_RUN),
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
    # It has started, and is importing torch.
    assert wait_until(lambda: has_fork_server(tmp_path))
    time.sleep(after_s)
    # As a terminal does: to every process of the group.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 2
    output = (tmp_path / "log").read_text()
    assert "Traceback" not in output
    assert wait_until(lambda: processes_of(tmp_path) == []), processes_of(tmp_path)


def test_runs_before_an_interruption_are_on_disk(tmp_path: Path) -> None:
    write_case(tmp_path, HEALTHY_NEIGHBOUR, "Case = Healthy", name="test_a_healthy.py")
    write_case(tmp_path, ON_RANK_1.format(fault="time.sleep(600)"), name="test_b_hangs.py")
    folder = tmp_path / ".gpuscale" / "results"
    process = subprocess.Popen(
        pytest_command(*ONE_RUN),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def two_runs_are_written() -> bool:
        return any(len(p.read_text().splitlines()) == 3 for p in folder.glob("*.jsonl"))

    assert wait_until(two_runs_are_written, 60)
    time.sleep(1)
    process.kill()
    process.wait(timeout=60)
    assert wait_until(lambda: processes_of(tmp_path) == [])
    lines = next(folder.glob("*.jsonl")).read_text().splitlines()
    assert len(lines) == 3


def test_sigterm_ends_the_session_and_not_just_the_run(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        pytest_command("--gpus", "1", "--runs", "50", "--device", "cpu"),
        cwd=tmp_path,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    folder = tmp_path / ".gpuscale" / "results"
    assert wait_until(lambda: any(folder.glob("*.jsonl")), 60)
    time.sleep(1)
    process.terminate()
    code = process.wait(timeout=30)
    log.close()
    output = (tmp_path / "log").read_text()
    # Between two runs the signal ends pytest itself; during one, the session ends in order.
    assert code in (128 + signal.SIGTERM, -signal.SIGTERM), output
    if code > 0:
        assert "ended by SIGTERM; earlier runs are kept" in output
    assert output.count("PASSED") < 50
    assert wait_until(lambda: processes_of(tmp_path) == [])
