"""A bar for commands that take minutes, on terminals only."""

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from gpuscale.report.progress import progress_text
from gpuscale.units import format_seconds

_REFRESH_S = 0.2
_ERASE = "\r\033[K"


class CountedProgress:
    """Draws how many of a number of runs are done, what the present one does, and the time."""

    def __init__(
        self,
        stream: TextIO,
        total: int,
        present: Callable[[], tuple[str, int, int] | None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._total = total
        self._present = present
        self._done = 0
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "CountedProgress":
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._thread = threading.Thread(target=self._draw, daemon=True)
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

    def advance(self) -> None:
        """One more is done."""
        self._done += 1

    def _draw(self) -> None:
        while not self._stop.wait(_REFRESH_S):
            present = self._present()
            inside = "" if present is None else f", {present[0]} {present[1]}/{present[2]}"
            passed = format_seconds(max(1.0, time.monotonic() - self._started))
            line = f"{progress_text('run', self._done, self._total)}{inside}, {passed}"
            self._stream.write(_ERASE + line)
            self._stream.flush()
        self._stream.write(_ERASE)
        self._stream.flush()
