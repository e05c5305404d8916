"""The line that moves while a run is under way, on terminals only."""

import io
import os
import sys
import threading
from types import TracebackType
from typing import TextIO

from gpuscale.launch import Launcher
from gpuscale.report.progress import progress_text

_REFRESH_S = 0.2
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


class ProgressLine:
    """Draws how far a run is behind the item's id, and erases it when the run has ended."""

    def __init__(self, stream: TextIO | None, launcher: Launcher) -> None:
        self._stream = stream
        self._launcher = launcher
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "ProgressLine":
        if self._stream is not None:
            self._thread = threading.Thread(target=self._draw, args=(self._stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self, stream: TextIO) -> None:
        stream.write(_SAVE_CURSOR)
        while not self._stop.wait(_REFRESH_S):
            progress = self._launcher.progress()
            if progress is not None:
                stream.write(_ERASE + progress_text(*progress))
                stream.flush()
        stream.write(_ERASE)
        stream.flush()
