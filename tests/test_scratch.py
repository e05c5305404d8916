"""Folders for a while: gone after use, and removed later where their process was killed."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from measuring import run_pytest, start_pytest, write_case

from gpuscale.measure.run_directory import scratch_folder

HOLDS = """
import sys, time
from pathlib import Path
from gpuscale.measure.run_directory import scratch_folder

with scratch_folder(".run-", within=Path(sys.argv[1])) as folder:
    (folder / "request").write_text("")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_folder_is_gone_after_its_use(tmp_path: Path) -> None:
    with scratch_folder(".run-", within=tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_a_folder_that_the_next_one_removes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        with scratch_folder(".run-", within=tmp_path):
            assert (held / "request").exists()
    finally:
        process.kill()
        process.communicate()
    assert (held / "request").exists()
    with scratch_folder(".run-", within=tmp_path):
        assert not held.exists()


def test_failed_runs_leave_nothing_behind(tmp_path: Path, short_folder: Path) -> None:
    lasting, failing, temporary = tmp_path / "lasting", tmp_path / "failing", short_folder
    lasting.mkdir()
    failing.mkdir()
    write_case(lasting, "Case = Tiny")
    options = ("--gpus", "2", "--runs", "1", "--device", "cpu")
    killed = start_pytest(lasting, *options, "--run-seconds", "60", TMPDIR=str(temporary))
    while not [*temporary.glob("gpuscale-run-*/progress")]:
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    write_case(
        failing, "class Case(Tiny):\n    def loss(self, output, target):\n        raise OSError"
    )
    run_pytest(failing, *options, TMPDIR=str(temporary)).ended(1)
    # torch makes an empty folder for what it compiles, whatever is run.
    left = [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []


def test_loaders_of_runs_leave_nothing_behind(tmp_path: Path, short_folder: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    loader = ("--data", "loader", "--data-workers", "1")
    options = ("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.5", *loader)
    session = run_pytest(tmp_path, *options, TMPDIR=str(short_folder))
    (run,) = session.results.runs
    assert run.is_valid, session.output
    left = [path for path in short_folder.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []
