"""Folders for a while: gone after use, and removed later where their process was killed."""

import socket
import subprocess
import sys
from pathlib import Path

from gpuscale.run_directory import scratch_folder

HOLDS = """
import sys, time
from pathlib import Path
from gpuscale.run_directory import scratch_folder

with scratch_folder(".run-", within=Path(sys.argv[1])) as folder:
    (folder / "request").write_text("")
    print(folder, flush=True)
    time.sleep(600)
"""


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


def test_folders_of_others_stay(tmp_path: Path) -> None:
    host = socket.gethostname()
    # Of another host, of another kind, and one whose process is just making it.
    names = [f".run-{host}-2_abcdefgh", f"other-{host}_abcdefgh", f".run-{host}_abcdefgh"]
    for name in names:
        (tmp_path / name).mkdir()
    for name in names[:2]:
        (tmp_path / name / "owner").touch()
    with scratch_folder(".run-", within=tmp_path):
        assert all((tmp_path / name).exists() for name in names)
