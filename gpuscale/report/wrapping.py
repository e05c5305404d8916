"""Lines that fit the terminal."""

import io
import os
import textwrap
from collections.abc import Iterable, Iterator
from typing import TextIO

PLAIN_WIDTH = 100
"""Columns of text that goes to a file or a log."""
_NARROWEST, _WIDEST = 60, 120
_INDENT = 4


def columns_of(stream: TextIO) -> int | None:
    """The columns of a terminal, or what `COLUMNS` says of it; None of anything else."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
    except (OSError, io.UnsupportedOperation):
        return PLAIN_WIDTH


def width_of(stream: TextIO) -> int:
    """The columns to use for text: those of a terminal, within reason, and 100 of anything else."""
    columns = columns_of(stream)
    return PLAIN_WIDTH if columns is None else min(max(columns, _NARROWEST), _WIDEST)


def fitted(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """The lines, wrapped where a terminal of so many columns asks for it; None asks for nothing."""
    for line in lines:
        yield from [line] if columns is None else wrapped(line, columns)


def wrapped(text: str, width: int, *, hanging: int = _INDENT) -> list[str]:
    """The text in lines of at most so many columns; a longer word stays whole.

    Args:
        text: One line; its indentation is kept.
        width: In columns.
        hanging: How much deeper than the first the further lines are indented.
    """
    indent = len(text) - len(text.lstrip(" "))
    lines = textwrap.wrap(
        # A number keeps its unit: textwrap breaks at spaces, and not at these.
        text[indent:].replace(" %", "\u00a0%"),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines] or [text]
