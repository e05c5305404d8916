"""The line that moves while a run is under way, on terminals only."""

import io
import os
import sys
from typing import TextIO

from gpuscale.launch import Launcher
from gpuscale.report.progress import RedrawnLine, progress_text

_SAVE_CURSOR = "\0337"
# Back behind the item's id, and nothing after it, also where the bar ran into a second line.
_ERASE = "\0338\033[J"


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

    def text() -> str | None:
        progress = launcher.progress()
        return None if progress is None else progress_text(*progress)

    return RedrawnLine(stream, text, begin=_SAVE_CURSOR, erase=_ERASE)
