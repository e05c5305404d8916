"""The progress of what takes minutes: a line that moves, on terminals only."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from gpuscale.units import format_seconds

_BAR_CELLS = 20
_SHORTEST_BAR = 4
_REFRESH_S = 0.2
_ERASE_LINE = "\r\033[K"
# The cursor rests behind what stands in the line and goes back there after each text, so that
# nothing is left behind when the screen scrolls; a text never runs into a second line.
_ERASE_REST = "\033[K"
_DRAW_REST = "\0337\033[?7l{}\033[?7h\0338"

Stage = tuple[str, int, int]
"""A name, how many of its steps are done, and of how many."""


def can_redraw(stream: TextIO) -> bool:
    """True for a terminal that can draw a line anew."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def progress_text(what: str, done: int, total: int, room: int | None = None) -> str:
    """A bar and what it counts: `██████████░░░░░░░░░░ window 5/10`.

    In less room, in columns, the bar is shorter or left out; where not even the words fit, the
    text is empty.
    """
    words = f"{what} {done}/{total}"
    cells = _BAR_CELLS if room is None else min(_BAR_CELLS, room - len(words) - 1)
    if cells < _SHORTEST_BAR:
        return words if room is None or len(words) <= room else ""
    filled = cells * done // total if total else 0
    return f"{'█' * filled}{'░' * (cells - filled)} {words}"


@contextmanager
def redrawn(
    stream: TextIO | None, text: Callable[[], str | None], *, behind: bool = False
) -> Iterator[None]:
    """Draw a text over and over while the context lasts, and erase it at the end.

    Args:
        stream: A terminal; None draws nothing.
        text: What to draw now, from a thread of its own; None or nothing leaves what is there.
        behind: What stands in the line already is kept, and the text drawn behind it.
    """
    if stream is None:
        yield
        return
    stop = threading.Event()
    erase, form = (_ERASE_REST, _DRAW_REST) if behind else (_ERASE_LINE, "{}")

    def draw() -> None:
        is_drawn = False
        while not stop.wait(_REFRESH_S):
            if now := text():
                _write(stream, erase + form.format(now))
                is_drawn = True
        if is_drawn:
            _write(stream, erase)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def counted_runs(
    stream: TextIO, total: int, present: Callable[[], Stage | None]
) -> Iterator[Callable[[], None]]:
    """Draw how many runs are made, what the present one does, and the time; yields what counts."""
    done = 0
    started = time.monotonic()

    def advance() -> None:
        nonlocal done
        done += 1

    def text() -> str:
        stage = present()
        inside = "" if stage is None else f", {stage[0]} {stage[1]}/{stage[2]}"
        passed = format_seconds(max(1.0, time.monotonic() - started))
        return f"{progress_text('run', done, total)}{inside}, {passed}"

    with redrawn(stream if can_redraw(stream) else None, text):
        yield advance


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
