"""For terminals: colours, and lines and tables that fit their columns."""

import io
import os
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from gpuscale.records import Verdict

PLAIN_COLUMNS = 100
"""Columns of text that goes to a file or a log."""
_NARROWEST, _WIDEST = 60, 120
_INDENT = 4
_GAP = "  "
_RESET, _BOLD = "\033[0m", "\033[1m"
_GREEN, _YELLOW, _BOLD_RED = "\033[32m", "\033[33m", "\033[1;31m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where text is shown, such as a terminal; a file or a log by default."""

    columns: int = PLAIN_COLUMNS
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Screen":
        """A terminal in its width, within reason, and in colour unless NO_COLOR is set."""
        columns = columns_of(stream)
        if columns is None:
            return cls()
        # no-color.org
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(columns=min(max(columns, _NARROWEST), _WIDEST), colour=not plain)

    def of_verdict(self, verdict: Verdict, text: str) -> str:
        """The text in the verdict's colour."""
        sign = _BOLD_RED if verdict.is_loss else _GREEN if verdict.is_pass else _YELLOW
        return f"{sign}{text}{_RESET}" if self.colour else text

    def bold(self, text: str) -> str:
        """The text in bold."""
        return f"{_BOLD}{text}{_RESET}" if self.colour else text


def columns_of(stream: TextIO) -> int | None:
    """The columns of a terminal, or what `COLUMNS` says of it; None of anything else."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PLAIN_COLUMNS
    except (OSError, io.UnsupportedOperation):
        return PLAIN_COLUMNS


def fitted(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """The lines, wrapped where a terminal of so many columns asks for it; None asks for nothing."""
    for line in lines:
        yield from [line] if columns is None else wrapped(line, columns)


def wrapped(text: str, columns: int, *, hanging: int = _INDENT) -> list[str]:
    """The text in lines of at most so many columns; a longer word stays whole.

    Args:
        text: One line; its indentation is kept.
        columns: Of each line.
        hanging: How much deeper than the first the further lines are indented.
    """
    indent = len(text) - len(text.lstrip(" "))
    lines = textwrap.wrap(
        # A number keeps its unit: textwrap breaks at spaces, and not at these.
        text[indent:].replace(" %", "\u00a0%"),
        columns,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines] or [text]


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int | None = None,
    *,
    keys: int = 2,
    first: Sequence[str] = (),
    left: Collection[str] | None = None,
    spare: Collection[str] = (),
) -> str:
    """One table where there is room for it, and else several, one below the other.

    Args:
        headers: Of the columns.
        rows: Their cells.
        columns: Of the terminal; None where there is room for any table.
        keys: How many of the columns, from the left, name a row and so begin each table.
        first: Headers of the columns that a narrow terminal shows first; the others follow in
            their order.
        left: Headers of the columns that are aligned to the left; None is the first alone.
        spare: Headers of the columns that only one whole table has.
    """
    # Not for comparisons, which have no table: importing it takes a sixth of their time.
    from tabulate import tabulate

    everything = range(len(headers))
    cells = [[row[i] for row in rows] for i in everything]
    aligned_left = [i == 0 if left is None else headers[i] in left for i in everything]
    sides = ["left" if is_left else "right" for is_left in aligned_left]
    whole = tabulate(rows, headers, disable_numparse=True, colalign=sides)
    if columns is None or max(map(len, whole.splitlines())) <= columns:
        return whole
    names = [*first, *(name for name in headers[keys:] if name not in first)]
    order = [headers.index(name) for name in names if name not in spare]
    # A header of several words may stand in several lines, a cell stands in one.
    widths = [max(map(len, [*headers[i].split(), *cells[i]])) for i in everything]
    parts = []
    for group in _groups(order, widths, columns, keys):
        shown = [*range(keys), *sorted(group)]
        parts.append(
            _drawn(
                [headers[i] for i in shown],
                [[row[i] for i in shown] for row in rows],
                [widths[i] for i in shown],
                [aligned_left[i] for i in shown],
            )
        )
    return "\n\n".join(parts)


def _groups(
    order: Sequence[int], widths: Sequence[int], columns: int, keys: int
) -> Iterator[list[int]]:
    """The columns of each table: as many as there is room for, and at least one."""
    start = sum(widths[:keys]) + len(_GAP) * (keys - 1)
    group: list[int] = []
    used = start
    for index in order:
        needed = len(_GAP) + widths[index]
        if group and used + needed > columns:
            yield group
            group, used = [], start
        group.append(index)
        used += needed
    yield group


def _drawn(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    aligned_left: Sequence[bool],
) -> str:
    heads = [textwrap.wrap(name, width) for name, width in zip(headers, widths, strict=True)]
    height = max(map(len, heads))
    padded = [[""] * (height - len(head)) + head for head in heads]
    rule = ["-" * width for width in widths]
    return "\n".join(
        _GAP.join(
            f"{cell:<{width}}" if is_left else f"{cell:>{width}}"
            for cell, width, is_left in zip(line, widths, aligned_left, strict=True)
        ).rstrip()
        for line in (*zip_longest(*padded), rule, *rows)
    )
