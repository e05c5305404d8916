"""A bar for commands that take minutes, on terminals only."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from gpuscale.report.progress import RedrawnLine, progress_text
from gpuscale.units import format_seconds

_ERASE = "\r\033[K"


class CountedProgress:
    """How many of a number of runs are done, what the present one does, and the time."""

    def __init__(self, total: int, present: Callable[[], tuple[str, int, int] | None]) -> None:
        self._total = total
        self._present = present
        self._done = 0
        self._started = time.monotonic()

    def advance(self) -> None:
        """One more is done."""
        self._done += 1

    def text(self) -> str:
        """The line as it is now."""
        present = self._present()
        inside = "" if present is None else f", {present[0]} {present[1]}/{present[2]}"
        passed = format_seconds(max(1.0, time.monotonic() - self._started))
        return f"{progress_text('run', self._done, self._total)}{inside}, {passed}"


@contextmanager
def counted_progress(
    stream: TextIO, total: int, present: Callable[[], tuple[str, int, int] | None]
) -> Iterator[CountedProgress]:
    """Draw the progress while the context lasts, where the stream is a terminal."""
    progress = CountedProgress(total, present)
    drawn = stream if _can_redraw(stream) else None
    with RedrawnLine(drawn, progress.text, erase=_ERASE):
        yield progress


def bar(stream: TextIO, what: str) -> Callable[[int, int], None]:
    """What draws how many of a total are done, and erases it with the last.

    It draws when it is called and nothing in between, and nothing at all where the stream is no
    terminal.
    """
    if not _can_redraw(stream):
        return lambda done, total: None

    def draw(done: int, total: int) -> None:
        text = "" if done == total else progress_text(what, done, total)
        stream.write(f"{_ERASE}{text}")
        stream.flush()

    return draw


def _can_redraw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
