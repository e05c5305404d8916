"""Read the output of a command's processes, and find out from it how they ended."""

import os
import re
import selectors
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuscale.base.foreign_texts import (
    EXCEPTION,
    LOST_PEER_LINES,
    STARTER_EXCEPTION,
    TORCHRUN_SUMMARY,
    TRACEBACK,
)
from gpuscale.base.process_ends import FAULT_SIGNALS
from gpuscale.records import Failure

_READ_BYTES = 1 << 16
# A progress bar rewrites its line after a carriage return.
_LINE_END = re.compile(rb"[\r\n]")
# The first line from rank_python.sh: torchrun assigns ranks only once all nodes have joined.
_RANK_LINE = re.compile(rb"GPUSCALE_RANK (\d+)")
COMMAND_SOURCE = "the command"
"""Source of lines printed by the command itself, or by ranks that do not have separate pipes."""


class Line(NamedTuple):
    """A line of output, with the process that printed it and the arrival time."""

    source: str
    """The process that printed the line, such as `rank 0`."""
    text: str
    arrived_s: float
    """Value of `time.monotonic()` when the last of the line's text arrived."""


class CommandError(Exception):
    """Raised if a command yields no result; `failure` gives the reason."""

    def __init__(self, failure: Failure, *, steps_reported: float = 0.0) -> None:
        super().__init__(failure.message)
        self.failure, self.steps_reported = failure, steps_reported


class Output:
    """Reads lines from several pipes as the data arrive."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def listen(self, descriptor: int, source: str) -> None:
        """Start to read lines from a pipe, to which the process `source` writes."""
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
        """Yield the lines that these bytes complete; empty `text` marks the end of the output."""
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
            # Keep only the end of long output without a line break.
            self._begun = (self._begun + rest)[-_READ_BYTES:]
            self._arrived_s = now_s


KEPT_LINES = 500
"""Number of lines from the end of each process's output that are kept and searched."""
SHOWN_LINES = 20
_MOST_SHOWN_LINES = 100


class LastWords(NamedTuple):
    """Evidence of how one process of a command ended; the exit code is None if unknown."""

    source: str
    exception: str | None
    """The last line of the process's traceback; None if there is no traceback."""
    exit_code: int | None
    lines: tuple[str, ...]


class _Traceback(NamedTuple):
    first_line: int
    arrived_s: float
    exception: str
    lost_peer: bool


def last_words(lines: Mapping[str, Collection[Line]], exit_code: int) -> LastWords | None:
    """Return the last words of the process that ended a command; None if no process is suspected.

    `lines` has the output of each process. A negative `exit_code` means that a signal ended the
    command; otherwise the exit codes in torchrun's summary are used. A process that only lost
    contact with another process is suspected last.
    """
    codes = {COMMAND_SOURCE: exit_code}
    if exit_code >= 0:
        codes = _codes_in_summary(lines.get(COMMAND_SOURCE, ()))
    raised = {source: found for source, printed in lines.items() if (found := _raised(printed))}
    # A command that reads the output of ranks may print their tracebacks again.
    if codes or len(raised) > 1:
        raised.pop(COMMAND_SOURCE, None)
    own = sorted(
        (source for source, found in raised.items() if not found.lost_peer),
        key=lambda source: raised[source].arrived_s,
    )
    killed = [source for source, code in codes.items() if -code in FAULT_SIGNALS]
    root = [*codes][-1:]
    surely = [source for source in root if source in (*own, *killed)]
    suspects = [*surely, *own, *killed, *root, *raised]
    if not suspects:
        return None
    source = suspects[0]
    printed, found = [*lines.get(source, ())], raised.get(source)
    start = len(printed) - SHOWN_LINES
    if found is not None:
        start = min(start, max(found.first_line, len(printed) - _MOST_SHOWN_LINES))
    return LastWords(
        source=source,
        # A process killed by a signal did not end because of an earlier exception.
        exception=None if found is None or source in killed else found.exception,
        exit_code=codes.get(source),
        lines=tuple(line.text for line in printed[max(0, start) :]),
    )


def _codes_in_summary(lines: Iterable[Line]) -> dict[str, int]:
    """Return exit codes from torchrun's summary, keyed by rank; the first failed rank is last."""
    codes: dict[str, int] = {}
    for rank, code in TORCHRUN_SUMMARY.findall("\n".join(line.text for line in lines)):
        codes.pop(f"rank {rank}", None)
        codes[f"rank {rank}"] = int(code)
    return codes


def _raised(lines: Iterable[Line]) -> _Traceback | None:
    """Return the last traceback of a process, preferably one not caused by a lost peer."""
    last, begin = dict[bool, _Traceback](), None
    for number, line in enumerate(lines):
        if TRACEBACK.match(line.text):
            begin = number, line.arrived_s
        elif begin is not None and (found := EXCEPTION.fullmatch(line.text)):
            lost_peer = LOST_PEER_LINES.search(found["exception"]) is not None
            if not STARTER_EXCEPTION.match(found["exception"]):
                last[lost_peer] = _Traceback(*begin, found["exception"], lost_peer)
            begin = None
    return last.get(False) or last.get(True)
