"""Lines that fit the terminal."""

import shutil
import textwrap
from typing import TextIO

PLAIN_WIDTH = 100
"""Columns of text that goes to a file or a log."""
_NARROWEST, _WIDEST = 60, 120
_INDENT = 4


def width_of(stream: TextIO) -> int:
    """The columns to use: those of a terminal, within reason, and 100 of anything else."""
    if not stream.isatty():
        return PLAIN_WIDTH
    columns = shutil.get_terminal_size(fallback=(PLAIN_WIDTH, 24)).columns
    return min(max(columns, _NARROWEST), _WIDEST)


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
