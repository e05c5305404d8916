"""The progress line, in a real terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from measuring import heed_interrupts, pytest_command, write_case

from gpuscale.report.progress import progress_text

COLUMNS, ROWS = 80, 24
TOKEN = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]|\x1b[78]|[^\x1b]")


class Screen:
    """As much of a terminal as pytest and the progress line use; it starts at the last row."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self.redraws = 0
        self._row = self._column = 0
        self._saved = (0, 0)
        self._wraps = True

    def feed(self, output: str) -> None:
        """Draw what a process wrote."""
        for token in TOKEN.findall(output):
            if token == "\x1b7":
                # What scrolls moves under a saved place: rows are counted from the last one.
                self._saved = (len(self.lines) - 1 - self._row, self._column)
                self.redraws += 1
            elif token == "\x1b8":
                self._row, self._column = len(self.lines) - 1 - self._saved[0], self._saved[1]
            elif token in ("\x1b[K", "\x1b[0K"):
                del self.lines[self._row][self._column :]
            elif token in ("\x1b[?7l", "\x1b[?7h"):
                self._wraps = token.endswith("h")
            elif token == "\r":
                self._column = 0
            elif token == "\n":
                self._down()
            elif not token.startswith("\x1b"):
                self._put(token)

    def _put(self, character: str) -> None:
        if self._column == COLUMNS and self._wraps:
            self._down()
            self._column = 0
        line, column = self.lines[self._row], min(self._column, COLUMNS - 1)
        line.extend(" " * (column + 1 - len(line)))
        line[column] = character
        self._column = column + 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append([])

    @property
    def text(self) -> list[str]:
        """What is left to read, the lines that were scrolled away included."""
        return ["".join(line).rstrip() for line in self.lines]


def output_in_a_terminal(folder: Path, *arguments: str, interrupt_at: bytes = b"") -> str:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        pytest_command(*arguments),
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=heed_interrupts,
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
        if interrupt_at and interrupt_at in b"".join(chunks):
            process.send_signal(signal.SIGINT)
            interrupt_at = b""
    process.wait(timeout=60)
    return b"".join(chunks).decode(errors="replace")


# `test_tiny.py::test_case…[ddp-1gpu-run1] ` takes 39 columns and what the name adds.
@pytest.mark.parametrize(
    ("added", "drawn"),
    [(0, "░ window "), (26, "window "), (36, ""), (41, ""), (60, "░ window ")],
    ids=["room", "no-room-for-a-bar", "no-room", "full-line", "second-line"],
)
def test_a_narrow_terminal_sees_how_far_a_run_is_and_keeps_no_trace_of_it(
    tmp_path: Path, added: int, drawn: str
) -> None:
    name = f"test_case{'x' * added}"
    path = write_case(tmp_path, "Case = Tiny")
    path.write_text(path.read_text().replace("def test_case(", f"def {name}("))
    output = output_in_a_terminal(
        tmp_path, "--gpus", "1", "--runs", "1", "--device", "cpu", "--run-seconds", "2"
    )
    assert (drawn in output) if drawn else ("window " not in output)
    screen = Screen()
    screen.feed(output)
    assert bool(screen.redraws) == bool(drawn)
    collected = next(i for i, line in enumerate(screen.text) if line.startswith("collected"))
    item = screen.text[collected + 2 :]
    # Up to an empty line, or where CI is set to the next section.
    ends = (i for i, line in enumerate(item) if not line or line.startswith("---"))
    shown = "".join(item[: next(ends)]).replace(" ", "")
    # The id and the verdict, and nothing that a redraw has scrolled up.
    words = r"(PASSED[\d.]+.{1,2}/step|XFAIL\(.*\))"
    verdict = rf"test_tiny\.py::{name}\[ddp-1gpu-run1\]{words}\[100%\]"
    assert re.fullmatch(verdict, shown)
    assert "go on with" not in output


def test_an_interrupted_session_says_how_to_go_on(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    arguments = ("--gpus", "1", "--device", "cpu", "--run-seconds", "2")
    output = output_in_a_terminal(tmp_path, *arguments, interrupt_at=b"PASSED")
    assert "KeyboardInterrupt" in output
    (file,) = (tmp_path / ".gpuscale" / "results").iterdir()
    words = " ".join(output.split())
    assert f"go on with: pytest … --resume .gpuscale/results/{file.name} (all else as" in words


def test_the_bar_fills_with_what_is_done() -> None:
    assert progress_text("window", 0, 10) == f"{'░' * 20} window 0/10"
    assert progress_text("window", 5, 10) == f"{'█' * 10}{'░' * 10} window 5/10"
    assert progress_text("window", 10, 10) == f"{'█' * 20} window 10/10"


@pytest.mark.parametrize("room", range(40))
def test_the_bar_gives_way_to_its_words_and_both_to_what_stands_before_them(room: int) -> None:
    text = progress_text("window", 5, 10, room)
    assert len(text) <= room
    assert bool(text) == (room >= len("window 5/10"))
    assert ("█" in text) == (room >= len("████ window 5/10"))
