"""The line that moves while a run is under way, on terminals only."""

import io
import os
import sys
from typing import TextIO

from gpuscale.launch import Launcher
from gpuscale.report.progress import RedrawnLine, progress_text
from gpuscale.report.wrapping import columns_of

# The cursor rests behind the item's id and goes back there after each text, so that nothing is
# left behind when the screen scrolls; a text never runs into a second line.
_ERASE = "\033[K"
_BEFORE = "\0337\033[?7l"
_AFTER = "\033[?7h\0338"


def terminal_stream() -> TextIO | None:
    """A stream of its own to the terminal that standard output is; None where it is none.

    To be asked while pytest is being configured: later, output is captured at the level of file
    descriptors, and what pytest itself writes to leads into the capture, too.
    """
    try:
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return None
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, ValueError, io.UnsupportedOperation):
        return None


def progress_line(stream: TextIO | None, launcher: Launcher) -> RedrawnLine:
    """Draws how far a run is behind the item's id, and erases it when the run has ended."""
    columns = None if stream is None else columns_of(stream)
    room = 0 if columns is None else _room(columns)

    def text() -> str | None:
        progress = launcher.progress()
        return None if progress is None else progress_text(*progress, room)

    return RedrawnLine(stream, text, erase=_ERASE, before=_BEFORE, after=_AFTER)


def _room(columns: int) -> int:
    """The columns behind the item's id, but for the last; 0 where the id fills its line."""
    # pytest shows the id as seen from the folder it was started in, which is at most shorter.
    item, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")
    return columns - (len(item) + 1) % columns - 1 if (len(item) + 1) % columns else 0
