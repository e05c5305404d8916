"""Text for terminals: colours, wrapped lines and tables, and progress lines."""

import math
import os
import re
import textwrap
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TextIO

import msgspec

from gpuscale.records import Verdict

PLAIN_COLUMNS = 100
"""Width of text in a file or log, in columns."""
_NARROWEST = 60
_WIDEST_TEXT = 120
"""Maximum width of a sentence, in columns; a table may use the whole terminal."""
_GAP = "  "
_RESET, _BOLD = "\033[0m", "\033[1m"
_GREEN, _YELLOW, _BOLD_RED = "\033[32m", "\033[33m", "\033[1;31m"
_BAR_CELLS, _SHORTEST_BAR = 20, 4
_REFRESH_S = 0.2
# Characters that may be two columns wide or zero, which gpuscale's own texts do not contain. The
# complement compiles ten times as fast as U+0300 to U+1FFF and U+2E80 to U+10FFFF.
_MAY_BE_WIDE = re.compile(r"[^\0-\u02ff\u2000-\u2e7f]")
_LABEL = re.compile(r"\S.*? {2,}")
_QUOTED = re.compile("'[^']*'")
_COUNTED = ("[mµ]?s", "min", "J", "[KMGT]iB", "GPUs?", "CPU", "runs?", "nights?", "rows?", "more")
# Spaces where a line must not break: before a unit or a counted word, in terms such as
# `− communication 0.09` or `4× V100`, and within an interval.
_UNBROKEN = re.compile(
    rf"(?<=\d) (?=(?:{'|'.join((*_COUNTED, *Verdict))})\b|%)|(?<=[−+]) (?=[a-z])"
    r"|(?<=[a-z]) (?=\d\.\d\d\b)|(?<=\d×) |(?<=,) (?=[^\s\],]+(?: [^\s\],]+)?\])"
)
_ERASE_LINE = "\r\033[K"
# The cursor returns to the end of the line's existing content after each drawing, so that scrolling
# leaves nothing behind. Automatic wrapping is off, so a text never continues on a second line.
_ERASE_REST = "\033[K"
_DRAW_REST = "\0337\033[?7l{}\033[?7h\0338"


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the output destination; the defaults suit a file or log, not a terminal."""

    columns: int = PLAIN_COLUMNS
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Screen":
        """Detect the width and colour support of a stream; setting NO_COLOR disables colour."""
        # See no-color.org.
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        columns = max(columns_of(stream), _NARROWEST)
        return cls(columns=columns, colour=stream.isatty() and not plain)

    def of_verdict(self, verdict: Verdict, text: str) -> str:
        """Return the text in the verdict's colour, or unchanged if the screen has no colour."""
        sign = _BOLD_RED if verdict.is_loss else _GREEN if verdict.is_pass else _YELLOW
        return f"{sign}{text}{_RESET}" if self.colour else text

    def bold(self, text: str) -> str:
        """Return the text in bold, or unchanged if the screen has no colour."""
        return f"{_BOLD}{text}{_RESET}" if self.colour else text


def columns_of(stream: TextIO) -> int:
    """Return the width set by the variable `COLUMNS`, else the terminal's, else PLAIN_COLUMNS."""
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    if stream.isatty():
        with suppress(OSError):
            return os.get_terminal_size(stream.fileno()).columns or PLAIN_COLUMNS
    return PLAIN_COLUMNS


def width_of(text: str) -> int:
    """Return the width of a text on a terminal, where a Chinese character takes two columns."""
    if not _MAY_BE_WIDE.search(text):
        return len(text)
    # Imported here: it takes 12 ms and is rarely needed.
    from wcwidth import wcswidth

    return int(wcswidth(text))


def padded(text: str, width: int, side: str = "<") -> str:
    """Pad the text to a width with spaces on the right, or on the left if `side` is `>`."""
    return f"{text:{side}{width - width_of(text) + len(text)}}"


def fitted(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Wrap each text to a width in columns; leave tables, which have line breaks, unchanged."""
    for line in lines:
        yield from [line] if "\n" in line else wrapped(line, columns)


def wrapped(text: str, columns: int, *, hanging: int | None = None) -> list[str]:
    """Wrap a line to a width in columns without splitting words.

    The indentation is kept. Continuation lines are indented by `hanging` more columns. Its default
    is the width of a label that ends in two spaces, or 4 if there is no such label.
    """
    columns = min(columns, _WIDEST_TEXT)
    indent = len(text) - len(text.lstrip(" "))
    if hanging is None:
        label = _LABEL.match(text[indent:])
        hanging = len(label[0]) if label and len(label[0]) <= columns // 2 else 4
    lines = textwrap.wrap(
        # textwrap does not break at non-breaking spaces.
        _UNBROKEN.sub("\u00a0", text[indent:]),
        columns,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines] or [text]


def labelled_lines(pairs: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield labels and texts, aligned and wrapped; a command (label `run`) can still be pasted."""
    width = max(len(label) for label, _ in pairs) + len(_GAP)
    for label, text in pairs:
        yield from _labelled(f"{label:<{width}}", text, columns)


def _labelled(label: str, text: str, columns: int) -> list[str]:
    if label.split() != ["run"]:
        return wrapped(f"{label}{text}", columns)
    unbroken = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", "\u00a0"), text)
    *lines, last = wrapped(f"{label}{unbroken}", columns - 2)
    return [*(f"{line} \\" for line in lines), last]


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int | None = None,
    first: Sequence[str] = (),
    *,
    left: Collection[str] = (),
) -> str:
    """Return a text table, divided into several narrower ones if it is wider than `columns`.

    The first two columns identify a row, so each of the narrower tables repeats them; the columns
    in `first` come next. If the first column of a divided table would take over half the width, its
    cells are printed as lines above the rows that share them. The first column and those in `left`
    are left-aligned. Headers may be wrapped; cells may not.
    """
    aligned_left = {headers[0], *left}
    texts = [*zip(headers, *rows, strict=True)]
    widths = {name: max(map(width_of, (*name.split(), *cells))) for name, *cells in texts}
    keys, others, above = headers[:2], headers[2:], ()
    free = math.inf
    if columns is not None and sum(widths.values()) + len(_GAP) * (len(widths) - 1) > columns:
        if widths[keys[0]] > columns // 2:
            keys, above = keys[1:], texts[0][1:]
            columns -= len(_GAP)
        free = columns + len(_GAP) - sum(widths[name] + len(_GAP) for name in keys)
        others = [*first, *(name for name in others if name not in first)]
    groups: list[list[str]] = [[]]
    room = free
    for name in others:
        needed = len(_GAP) + widths[name]
        if groups[-1] and needed > room:
            groups.append([])
            room = free
        groups[-1].append(name)
        room -= needed
    shown = ([each for each in texts if each[0] in (*keys, *group)] for group in groups)
    return "\n\n".join(_drawn(part, widths, aligned_left, above) for part in shown)


def _drawn(
    columns: Sequence[Sequence[str]],
    widths: Mapping[str, int],
    aligned_left: Collection[str],
    above: Sequence[str],
) -> str:
    """Draw a table from columns, each a header followed by its cells; long headers are wrapped.

    `above` is empty or has a text for each row, written once above successive rows that share it.
    """
    heads = {name: textwrap.wrap(name, widths[name]) for name, *_ in columns}
    height = max(map(len, heads.values()))
    drawn = []
    for name, *cells in columns:
        head, side = heads[name], "<" if name in aligned_left else ">"
        texts = [*[""] * (height - len(head)), *head, "-" * widths[name], *cells]
        drawn.append([padded(text, widths[name], side) for text in texts])
    lines = [_GAP.join(line).rstrip() for line in zip(*drawn, strict=True)]
    if above:
        lines = [f"{_GAP}{line}" for line in lines]
        rows = zip(("", *above), above, lines[height + 1 :], strict=False)
        named = ((line,) if text == before else (text, line) for before, text, line in rows)
        lines[height + 1 :] = chain.from_iterable(named)
    return "\n".join(lines)


def can_redraw(stream: TextIO) -> bool:
    """True if the stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def progress_text(what: str, done: int, total: int, room: int | None = None) -> str:
    """Return a progress bar with a count: `██████████░░░░░░░░░░ window 5/10`.

    If `room`, in columns, is too small, the bar is shortened or omitted; the text is empty if not
    even `what` and the count fit. If `total` is 0 (unknown), return `what`, cut to `room`.
    """
    if not total:
        return what[:room]
    words = f"{what} {done}/{total}"
    cells = _BAR_CELLS if room is None else min(_BAR_CELLS, room - len(words) - 1)
    if cells < _SHORTEST_BAR:
        return words if room is None or len(words) <= room else ""
    filled = cells * done // total
    return f"{'█' * filled}{'░' * (cells - filled)} {words}"


@contextmanager
def redrawn(
    stream: TextIO | None, text: Callable[[], str | None], *, behind: bool = False
) -> Iterator[None]:
    """Redraw a text periodically while the context is active, and erase it at the end.

    A thread calls `text`; if the result is None or empty, the line stays as it is. If `behind`, the
    text follows what the line already shows. If the stream is None, nothing is drawn.
    """
    if stream is None:
        yield
        return
    stop = threading.Event()
    erase, form = (_ERASE_REST, _DRAW_REST) if behind else (_ERASE_LINE, "{}")

    def draw() -> None:
        is_drawn = False
        while not stop.wait(_REFRESH_S):
            if now := text():
                stream.write(erase + form.format(now))
                stream.flush()
                is_drawn = True
        if is_drawn:
            stream.write(erase)
            stream.flush()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
