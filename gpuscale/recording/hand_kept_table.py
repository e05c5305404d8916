"""Tables that people keep by hand, as CSV or in Markdown: their cells, each with its line."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscale.errors import DecodeError
from gpuscale.printable import text_problem

_DELIMITERS = (",", ";", "\t")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_BAR = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row, with as many cells as the table has headers."""

    line: int
    """Of the text, from 1."""
    cells: tuple[str, ...]
    """Without spaces and emphasis around them; empty where nothing stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a text."""

    line: int
    """Of its headers."""
    headers: tuple[str, ...]
    rows: tuple[TableRow, ...]


def tables_in(text: str) -> tuple[Table, ...]:
    """The tables of a text: all that stand in Markdown, else the text itself as CSV.

    CSV is separated by commas, semicolons or tabs, whichever its first line has most of; lines
    that are empty or begin with `#` are passed over.

    Raises:
        DecodeError: with its line: an unprintable character, or a row with more or fewer cells
            than there are headers.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        problem = text_problem(line.replace("\t", " "))
        if problem is not None:
            raise DecodeError("", problem, line=number)
    return tuple(_markdown(lines)) or tuple(_csv(lines))


def _markdown(lines: Sequence[str]) -> Iterator[Table]:
    for at in range(1, len(lines)):
        head, rule = lines[at - 1], lines[at]
        if "|" not in head or "|" not in rule or _RULE.fullmatch(rule) is None:
            continue
        rows = []
        for number, line in enumerate(lines[at + 1 :], start=at + 2):
            if "|" not in line:
                break
            rows.append(TableRow(line=number, cells=_markdown_cells(line)))
        yield _checked(TableRow(line=at, cells=_markdown_cells(head)), rows)


def _markdown_cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(cell.replace("\\|", "|").strip(" *`") for cell in _BAR.split(inner))


def _csv(lines: Sequence[str]) -> Iterator[Table]:
    numbered = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not numbered:
        return
    delimiter = max(_DELIMITERS, key=numbered[0][1].count)
    rows = []
    for number, line in numbered:
        try:
            # A line each: a quoted line break would hide an unclosed quote.
            (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            raise DecodeError("", f"this is no line of a table: {error}", line=number) from None
        rows.append(TableRow(line=number, cells=tuple(cell.strip() for cell in cells)))
    yield _checked(rows[0], rows[1:])


def _checked(head: TableRow, rows: Sequence[TableRow]) -> Table:
    for row in rows:
        if len(row.cells) != len(head.cells):
            problem = f"{len(row.cells)} cells under {len(head.cells)} headers (line {head.line})"
            raise DecodeError("", f"{problem}; give each header its cell", line=row.line)
    return Table(line=head.line, headers=head.cells, rows=tuple(rows))
