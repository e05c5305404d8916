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


def test_a_killed_process_leaves_a_folder_that_the_next_one_removes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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


def test_killed_failed_and_loading_runs_leave_nothing(tmp_path: Path, short_folder: Path) -> None:
    raises = "class Case(Tiny):\n    def loss(self, output, target):\n        raise OSError"
    for name, case in (("lasting", "Case = Tiny"), ("failing", raises), ("loading", "Case = Tiny")):
        (tmp_path / name).mkdir()
        write_case(tmp_path / name, case)
    temporary = {"TMPDIR": str(short_folder)}
    options = ("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds")
    killed = start_pytest(tmp_path / "lasting", *options, "60", **temporary)
    while not [*short_folder.glob("gpuscale-run-*/progress")]:
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    run_pytest(tmp_path / "failing", *options, "0.5", **temporary).ended(1)
    loaders = ("--data", "loader", "--data-workers", "1")
    run_pytest(tmp_path / "loading", *options, "0.5", *loaders, **temporary).ended()
    # torch makes an empty folder for what it compiles, whatever is run.
    left = [path for path in short_folder.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []
