"""Read a command's output: how processes ended, and step numbers in lines of unknown format."""

import os
import re
import selectors
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuscale.base.known_error_messages import (
    EXCEPTION,
    LOST_PEER_LINES,
    STARTER_EXCEPTION,
    TORCHRUN_SUMMARY,
    TRACEBACK,
)
from gpuscale.base.process_ends import FAULT_SIGNALS
from gpuscale.base.text import counted, visible
from gpuscale.records import Failure
from gpuscale.workload.step_log_formats import EPOCH, HF_LOSS

_READ_BYTES = 1 << 16
# A progress bar rewrites its line after a carriage return.
_LINE_END = re.compile(rb"[\r\n]")
# The first line from rank_python.sh: torchrun assigns ranks only once all nodes have joined.
_RANK_LINE = re.compile(rb"GPUSCALE_RANK (\d+)")
COMMAND_SOURCE = "the command"
"""Source of lines printed by the command itself, or by ranks that do not have separate pipes."""
_STEP_WORD = r"(?<![a-z])(?:steps?|iter[a-z]*|it|batch)(?![a-z])"
_OF_TRAINING = re.compile(
    rf"(?:{_STEP_WORD}|(?<![a-z])(?:loss|epoch|acc(?:uracy)?|lr|ppl|perplexity|ce|nll|seen))\W*\d",
    re.IGNORECASE,
)
_COUNTER = re.compile(rf"{_STEP_WORD}\W*\d", re.IGNORECASE)
_WHOLE = re.compile(r"(?<![\d.,])(?<!\d[:-])\d+(?![.,]?\d)(?![:-]\d)")
"""Pattern of a whole number that is not part of a decimal number, time or date."""
_OWN_LINES = "at each step print 'GPUSCALE {\"step\": 10}', as gpuscale.report does"
_FEWEST_ALIKE = 20
_MOST_KINDS = 1000
_SHORTEST_S = 10.0
_LONGEST_SHOWN = 100


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
        """Start reading lines from a pipe; `source` names the process that writes to it."""
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
        self._source, self._begun, self._arrived_s = source, b"", 0.0

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
    """Return evidence from the process that made a command fail; None if no process is suspected.

    `lines` has the output of each process. A negative `exit_code` means that a signal ended the
    command; otherwise the exit codes in torchrun's summary are used. A process that only lost
    contact with another process is suspected last.
    """
    said = lines.get(COMMAND_SOURCE, ())
    codes = {COMMAND_SOURCE: exit_code} if exit_code < 0 else _codes_in_summary(said)
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
    if not (suspects := [*surely, *own, *killed, *root, *raised]):
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
    """Return exit codes by rank from torchrun's summary, ending with the rank that failed first."""
    codes: dict[str, int] = {}
    for rank, code in TORCHRUN_SUMMARY.findall("\n".join(line.text for line in lines)):
        codes.pop(f"rank {rank}", None)
        codes[f"rank {rank}"] = int(code)
    return codes


def _raised(lines: Iterable[Line]) -> _Traceback | None:
    """Return the last traceback not due to a lost peer, else the last one; None if none exists."""
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


@dataclass(slots=True)
class _Kind:
    """A group of lines that differ only in numbers and punctuation."""

    first_s: float
    is_training: bool
    """True if the lines have a word that only training prints."""
    count: int = 0
    latest: str = ""
    rises: Counter[int] = field(default_factory=Counter)
    """How often each whole number rose from a line to the next, keyed by its place among them."""

    def take(self, line: str) -> None:
        """Count a line, and note which of its numbers have risen since the previous line."""
        both = zip(_WHOLE.findall(self.latest), _WHOLE.findall(line), strict=False)
        self.rises.update(place for place, (old, new) in enumerate(both) if int(new) > int(old))
        self.count += 1
        self.latest = line

    @property
    def counter(self) -> str:
        """Regular expression for the number that rose most often from line to line; empty if none.

        A number after a word such as `step` takes precedence.
        """
        named = {found.end() - 1 for found in _COUNTER.finditer(self.latest)}
        starts = [number.start() for number in _WHOLE.finditer(self.latest)]
        risen = [(at in named, self.rises[n], -at) for n, at in enumerate(starts) if self.rises[n]]
        return _pattern(self.latest, -max(risen)[-1]) if risen else ""


class UnreadLines:
    """Detector of lines that a script probably prints at each step, in an unknown format."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self.are_training = False
        """True once lines that only training prints have recurred often and for long enough."""
        self.count, self._last = 0, ""

    def take(self, line: str, arrived_s: float) -> None:
        """Examine the next line, already cleaned of terminal escape sequences by `plain`."""
        self.count += 1
        self._last = " ".join(line.split())[:_LONGEST_SHOWN] or self._last
        is_training = _OF_TRAINING.search(line) is not None
        if not is_training and len(self._kinds) >= _MOST_KINDS:
            return
        words = re.sub(r"[^A-Za-z]+", " ", line)
        kind = self._kinds.setdefault(words, _Kind(arrived_s, is_training))
        kind.take(line.strip())
        is_frequent = kind.count >= _FEWEST_ALIKE and arrived_s - kind.first_s >= _SHORTEST_S
        self.are_training |= is_frequent and kind.is_training

    @property
    def notice(self) -> str:
        """Message while no step has been found: the number of lines read, and the last line."""
        read = f"no step read in {counted(self.count, 'line')} (--step-regex?)"
        return f"{read}; last: {visible(self._last)}"

    def reason(self, format_name: str | None) -> str:
        """Explain why `format_name` (None: every known format) found no step; suggest a remedy."""
        if not self._last:
            return f"it printed nothing to time its steps by; {_OWN_LINES}"
        shown = max(
            reversed(self._kinds.values()),
            key=lambda kind: (kind.is_training and kind.count > 1, bool(kind.latest), kind.count),
        )
        reads = f"{format_name} does not read" if format_name else "no format known reads"
        return f"{reads} a step in lines such as: {shown.latest[:_LONGEST_SHOWN]}; {_remedy(shown)}"


def _remedy(kind: _Kind) -> str:
    own = f"{_OWN_LINES}, or judge a figure that it prints, by --figure"
    if HF_LOSS.search(kind.latest):
        return f"keep the bar of Hugging Face's Trainer (no disable_tqdm=True), or {own}"
    if pattern := kind.counter:
        return f"if that counts steps, give --step-regex '{pattern}', else {own}"
    return own


def _pattern(line: str, at: int) -> str:
    """Return a short regex that finds the number at `at` by the words before it; '' if impossible.

    All other numbers may vary, even the total in `219/500`, which may depend on the number of
    ranks. The regex begins at the word `epoch`, if any, or else at the word before the number.
    """
    starts = [found.start() for found in re.finditer(r"\S+", line[:at])][::-1]
    named = [begin for begin in starts if re.fullmatch(r"\D*[^\W\d_]\D*", line[begin:at])]
    epoch = EPOCH.search(line, 0, at)
    starts = [*([epoch.start()] if epoch else []), *named, *starts, at]
    total = r"/\d+" if re.match(r"\d+/\d+", line[at:]) else ""
    for begin in starts:
        before = _escaped(line[begin:at]) or r"^\s*"
        if epoch and begin == epoch.start():
            parts = line[begin : epoch.start(1)], line[epoch.end(1) : at]
            before = r"(?P<epoch>\d+)".join(map(_escaped, parts))
        pattern = rf"{before}(?P<step>\d+){total}"
        if (found := re.search(pattern, line)) and found.start("step") == at:
            return pattern
    return ""


def _escaped(text: str) -> str:
    """Return a regex for a text whose blanks and numbers may vary; a shell can single-quote it."""
    pattern = re.sub(r"(\\ )+", r"\\s*", re.escape(text)).replace("'", ".")
    return re.sub(r"\d+", r"\\d+", pattern)
