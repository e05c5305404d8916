"""The output of a command's processes as lines, each with its arrival time."""

import os
import re
import selectors
import time
from collections.abc import Iterator
from typing import NamedTuple

_READ_BYTES = 1 << 16
# A progress bar begins its line anew without ending it.
_LINE_END = re.compile(rb"[\r\n]")
# What rank_python.sh says first: torchrun knows the number of a rank only once all nodes are there.
_RANK_LINE = re.compile(rb"GPUSCALE_RANK (\d+)")


COMMAND_SOURCE = "the command"
"""Source of lines printed by the command itself, or by ranks that do not have separate pipes."""


class Line(NamedTuple):
    """A printed line."""

    source: str
    """The process that printed the line, such as `rank 0`."""
    text: str
    arrived_s: float
    """Time by `time.monotonic` at which the end of the line's text arrived."""


class Output:
    """Reads lines from several pipes as the data arrive."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def listen(self, descriptor: int, source: str) -> None:
        """Also read from this end of a pipe."""
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, _Pipe(source))

    def lines(self, patience_s: float) -> list[Line]:
        """Return the lines completed since the last call; wait at most `patience_s` for data."""
        found: list[Line] = []
        for key, _ in self._selector.select(patience_s if self._selector.get_map() else 0):
            now_s = time.monotonic()
            text = os.read(key.fd, _READ_BYTES)
            found += key.data.lines_of(text, now_s)
            if not text:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        return found


class _Pipe:
    def __init__(self, source: str) -> None:
        self._source = source
        self._begun = b""
        self._arrived_s = 0.0

    def lines_of(self, text: bytes, now_s: float) -> Iterator[Line]:
        """Yield the lines that a piece of output completes; an empty piece ends the last line."""
        *ended, rest = _LINE_END.split(text) if text else (b"", b"")
        for part in ended:
            arrived_s = now_s if part else self._arrived_s
            line = self._begun + part
            if found := _RANK_LINE.fullmatch(line):
                self._source = f"rank {int(found[1])}"
            elif line:
                yield Line(self._source, line.decode("utf-8", errors="replace"), arrived_s)
            self._begun = b""
        if rest:
            # Output without a line break is cut.
            self._begun = (self._begun + rest)[-_READ_BYTES:]
            self._arrived_s = now_s
