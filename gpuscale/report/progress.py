"""How far a run is, in a few words, and the line of a terminal that says so."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_BAR_CELLS = 20
_REFRESH_S = 0.2


def progress_text(stage: str, done: int, total: int) -> str:
    """A bar and what it counts: `██████████░░░░░░░░░░ window 5/10`."""
    filled = _BAR_CELLS * done // total if total else 0
    bar = "█" * filled + "░" * (_BAR_CELLS - filled)
    return f"{bar} {stage} {done}/{total}"


class RedrawnLine:
    """Draws a text over and over while its context lasts, and erases it at the end.

    Args:
        stream: A terminal; None draws nothing.
        text: What to draw now, from a thread of its own; None leaves what is there.
        erase: What takes the cursor to where the text begins and removes what stands behind it.
        begin: What to write once before everything else.
    """

    def __init__(
        self,
        stream: TextIO | None,
        text: Callable[[], str | None],
        *,
        erase: str,
        begin: str = "",
    ) -> None:
        self._stream = stream
        self._text = text
        self._erase = erase
        self._begin = begin
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._thread = threading.Thread(target=self._draw, args=(self._stream,), daemon=True)
            self._thread.start()

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
        stream.write(self._begin)
        while not self._stop.wait(_REFRESH_S):
            text = self._text()
            if text is not None:
                stream.write(self._erase + text)
                stream.flush()
        stream.write(self._erase)
        stream.flush()
