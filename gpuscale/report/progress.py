"""How far a run is, in a few words, and the line of a terminal that says so."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_BAR_CELLS = 20
_SHORTEST_BAR = 4
_REFRESH_S = 0.2


def progress_text(stage: str, done: int, total: int, room: int | None = None) -> str:
    """A bar and what it counts: `██████████░░░░░░░░░░ window 5/10`.

    In less room, in columns, the bar is shorter or left out; where not even the words fit, the
    text is empty.
    """
    words = f"{stage} {done}/{total}"
    cells = _BAR_CELLS if room is None else min(_BAR_CELLS, room - len(words) - 1)
    if cells < _SHORTEST_BAR:
        return words if room is None or len(words) <= room else ""
    filled = cells * done // total if total else 0
    return f"{'█' * filled}{'░' * (cells - filled)} {words}"


class RedrawnLine:
    """Draws a text over and over while its context lasts, and erases it at the end.

    Args:
        stream: A terminal; None draws nothing.
        text: What to draw now, from a thread of its own; None or nothing leaves what is there.
        erase: What takes the cursor to where the text begins and removes what stands behind it.
        before: What to write before each text.
        after: What to write behind each text.
    """

    def __init__(
        self,
        stream: TextIO | None,
        text: Callable[[], str | None],
        *,
        erase: str,
        before: str = "",
        after: str = "",
    ) -> None:
        self._stream = stream
        self._text = text
        self._erase = erase
        self._before = before
        self._after = after
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
        is_drawn = False
        while not self._stop.wait(_REFRESH_S):
            if text := self._text():
                stream.write(f"{self._erase}{self._before}{text}{self._after}")
                stream.flush()
                is_drawn = True
        if is_drawn:
            stream.write(self._erase)
            stream.flush()
