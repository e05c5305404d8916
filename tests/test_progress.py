"""The line that moves while a run is under way, in a real terminal."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import request_for
from hosts import within_limit
from measuring import PYTEST, TINY_CASE, in_a_terminal

from gpuscale.measure.run_directory import RunDirectory
from gpuscale.plugin import terminal
from gpuscale.reports.screen import progress_text

COLUMNS = 80
TOKEN = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]|\x1b[78]|[^\x1b]")


class Screen:
    """A terminal with the features that pytest and the progress line use."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._saved = (0, 0)
        self._wraps = True

    def feed(self, output: str) -> None:
        for token in TOKEN.findall(output):
            if token == "\x1b7":
                # What scrolls moves under a saved place: rows are counted from the last one.
                self._saved = (len(self.lines) - 1 - self._row, self._column)
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
        """All that is left to read, the lines that were scrolled away included."""
        return ["".join(line).rstrip() for line in self.lines]


# `test_tiny.py::test_…[ddp-1gpu-run1] ` takes 35 columns and the name's: what is drawn behind it,
# with room, with none for a bar, with none, in a full line, and in a second line.
DRAWN = {4: "░ window ", 30: "window ", 40: "", 45: "", 64: "░ window "}
# Windows last for a second, many redraws long, and the last item's until it is interrupted: a busy
# machine may draw late.
CASES = """
import time

class Drawn(Tiny):
    pause_s = 0.1

    def loss(self, output, target):
        time.sleep(self.pause_s)
        return super().loss(output, target)

class Lasting(Drawn):
    pause_s = 0.5
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A session of items whose names leave different room, interrupted in its last."""
    folder = tmp_path_factory.mktemp("session")
    test = "@pytest.mark.gpuscale(case={})\ndef test_{}(scaling):\n    scaling()\n"
    tests = [test.format("Drawn" if text else "Tiny", "x" * n) for n, text in DRAWN.items()]
    path = folder / "test_tiny.py"
    path.write_text("\n\n".join([TINY_CASE, CASES, *tests, test.format("Lasting", "x")]))
    words = (*PYTEST, "--gpus", "1", "--runs", "1", "--device", "cpu", "--run-seconds", "0.3")
    in_the_last = re.compile(rb"test_x\[.*window ", re.DOTALL)
    return folder, in_a_terminal(words, folder, columns=COLUMNS, interrupt_at=in_the_last)


def test_a_narrow_terminal_sees_progress(session: tuple[Path, str]) -> None:
    output, screen = session[1], Screen()
    screen.feed(output)
    # The id and the verdict, and nothing that a redraw has scrolled up.
    shown = "".join(screen.text).replace(" ", "")
    words = r"(PASSED[\d.]+.{1,2}/step(?:,[\d.]+\w+left)?|UNSTEADY(?:\(.*?\))?)"
    for length, text in DRAWN.items():
        name = f"test_tiny.py::test_{'x' * length}[ddp-1gpu-run1]"
        begin = output.index(name)
        drawn = output[begin : output.index("%]", begin)]
        assert (text in drawn) if text else ("window " not in drawn)
        assert ("\x1b7" in drawn) is bool(text)
        assert re.search(rf"{re.escape(name)}{words}\[\d+%\]", shown)


def test_a_terminal_hears_at_once_that_a_session_begins(session: tuple[Path, str]) -> None:
    said, begins, _ = session[1].partition("test session starts")
    assert begins
    assert "examining this machine" in said


def test_a_session_says_how_long_it_still_takes(session: tuple[Path, str]) -> None:
    assert re.search(r"PASSED [^ ]+ [^ ]+/step, [\d.]+ s left", session[1])


def test_an_interrupted_session_says_how_to_go_on(session: tuple[Path, str]) -> None:
    folder, output = session
    assert "Exit: interrupted !!" in output
    assert "KeyboardInterrupt" not in output
    (file,) = (folder / ".gpuscale" / "results").iterdir()
    words = " ".join(output.split())
    assert f"go on as before, with --resume .gpuscale/results/{file.name} and" in words


@pytest.mark.parametrize("columns", [80, 100])
def test_a_long_reason_to_skip_leaves_the_line_whole(tmp_path: Path, columns: int) -> None:
    # Its id and the word fill the line up to the percentage, or leave room for a part of a reason.
    for length in (columns - 61, 8):
        case = "\n@pytest.mark.gpuscale(case=Tiny)\ndef test_{}(scaling):\n    scaling()\n"
        path = tmp_path / "test_tiny.py"
        path.write_text(TINY_CASE + case.format("x" * length))
        asked = ("--gpus", "64", "--runs", "1", "--device", "cpu")
        output = in_a_terminal((*PYTEST, *asked), tmp_path, columns=columns)
        lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
        (line,) = (line for line in lines if "SKIPPED" in line)
        name = f"test_tiny.py::test_{'x' * length}[ddp-64gpus-run1]"
        assert re.fullmatch(rf"{re.escape(name)} SKIPPED( \(64 .*\.\.\.\))? +\[100%\]", line), line
        assert len(line) <= columns
        reason = "64 CPU ranks need as many cores; 2 found (--oversubscribe measures all the same)"
        assert re.sub(r"\d found", "2 found", "\n".join(lines)).count(f"1 skipped: {reason}") == 1


@pytest.mark.parametrize("line", [None, "window\t0\t5"], ids=["silence", "a line"])
def test_a_command_is_called_silent_only_without_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str | None
) -> None:
    monkeypatch.setattr(terminal, "can_redraw", lambda stream: True)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "train::test_command[run1] (call)")
    asked = request_for(tmp_path, "")
    if line is not None:
        (tmp_path / "progress").write_text(line)
    launcher = SimpleNamespace(running=RunDirectory(path=tmp_path))
    stream = io.StringIO()
    with terminal.progress_line(stream, launcher, asked):  # type: ignore[arg-type] # enough
        within_limit(lambda: stream.getvalue() != "")
    assert ("nothing printed yet" in stream.getvalue()) is (line is None)


@pytest.mark.parametrize(("length", "room"), [(72, 6), (77, 1), (78, 0), (79, 0), (80, 78)])
def test_progress_takes_what_an_item_leaves_of_its_line_but_the_last_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, room: int
) -> None:
    texts: list[str | None] = []

    @contextmanager
    def drawn_once(stream: object, text: Callable[[], str | None], **_: bool) -> Iterator[None]:
        texts.append(text())
        yield

    monkeypatch.setattr(terminal, "redrawn", drawn_once)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{'x' * length} (call)")
    stream, launcher = io.StringIO(), SimpleNamespace(running=RunDirectory(path=tmp_path))
    for progress in (None, "window\t5\t10"):
        request = request_for(tmp_path, "")
        if progress:
            (tmp_path / "progress").write_text(progress)
        with terminal.progress_line(stream, launcher, request):  # type: ignore[arg-type] # enough
            pass
    assert texts == ["nothing printed yet"[:room], progress_text("window", 5, 10, room)]


@pytest.mark.parametrize("done", [0, 5, 10])
def test_the_bar_fills_with_what_is_done(done: int) -> None:
    bar = "█" * 2 * done + "░" * 2 * (10 - done)
    assert progress_text("window", done, 10) == f"{bar} window {done}/10"


@pytest.mark.parametrize("room", range(40))
def test_the_bar_gives_way_to_its_words_and_both_to_what_stands_before_them(room: int) -> None:
    text = progress_text("window", 5, 10, room)
    assert len(text) <= room
    assert bool(text) == (room >= len("window 5/10"))
    assert ("█" in text) == (room >= len("████ window 5/10"))
