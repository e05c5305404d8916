"""The progress line, in a real terminal."""

import os
import pty
import subprocess
from pathlib import Path

from measuring import pytest_command, write_case

from gpuscale.report.progress import progress_text


def output_in_a_terminal(folder: Path, *arguments: str) -> str:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        pytest_command(*arguments),
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            # Linux's way of saying that nobody holds the other side any more.
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(timeout=60)
    return b"".join(chunks).decode(errors="replace")


def test_a_terminal_sees_how_far_a_run_is_and_keeps_no_trace_of_it(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    output = output_in_a_terminal(
        tmp_path, "--gpus", "1", "--runs", "1", "--device", "cpu", "--run-seconds", "3"
    )
    assert "window " in output
    item, _, rest = output.partition("test_case[ddp-1gpu-run1] ")
    assert item
    # Saved behind the id, and back there before the verdict: the id stays readable.
    assert rest.startswith("\x1b7")
    assert "\x1b8\x1b[J\x1b[32mPASSED" in rest


def test_the_bar_fills_with_what_is_done() -> None:
    assert progress_text("window", 0, 10) == f"{'░' * 20} window 0/10"
    assert progress_text("window", 5, 10) == f"{'█' * 10}{'░' * 10} window 5/10"
    assert progress_text("window", 10, 10) == f"{'█' * 20} window 10/10"
