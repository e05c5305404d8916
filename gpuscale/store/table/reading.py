"""Find the tables in a text of CSV or Markdown, and the line number of each row."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from gpuscale.base.errors import DecodeError
from gpuscale.base.printable import text_problem
from gpuscale.base.units import counted

_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_COMMENT = re.compile(r"#(?!\s*(?:of )?(?:gpus|nodes|runs)\b)", re.IGNORECASE)
"""Start of a comment, but not of a header such as `# gpus`."""
_BAR = re.compile(r"(?<!\\)\|")


class TableRow(NamedTuple):
    """One row of a table."""

    line: int
    """Line number in the text, from 1."""
    cells: tuple[str, ...]
    """Cell texts without surrounding spaces and Markdown emphasis."""


class Problems:
    """Problems found in a text, collected so that all are reported at once."""

    def __init__(self) -> None:
        self.found: list[DecodeError] = []

    def add(self, line: int, problem: str, *, place: str = "") -> None:
        """Add a problem found on a line."""
        self.found.append(DecodeError(place, problem, line=line))

    def in_order(self) -> tuple[DecodeError, ...]:
        """Return the problems in order of line numbers."""
        return tuple(sorted(self.found, key=lambda problem: problem.line or 0))

    @contextmanager
    def on(self, line: int, *, place: str = "") -> Iterator[None]:
        """Catch a `DecodeError` raised inside the context and add it as a problem on this line."""
        try:
            yield
        except DecodeError as error:
            self.add(line, error.problem, place=place or error.place)


def tables_in(text: str, problems: Problems) -> list[list[TableRow]]:
    """Return the tables in a text: the header row, and all rows with the same number of cells.

    If there are no Markdown tables, the whole text is read as one CSV table, whose delimiter is the
    most frequent of comma, semicolon and tab in the first line.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        problem = text_problem(line.replace("\t", " "))
        if problem is not None:
            problems.add(number, problem)
            lines[number - 1] = ""
    tables = list(_markdown(lines)) or [_csv(lines, problems)]
    return [_without_blanks(list(_complete_rows(table, problems))) for table in tables if table]


def _complete_rows(table: Sequence[TableRow], problems: Problems) -> Iterator[TableRow]:
    """Yield the rows with as many cells as there are headers; add a problem for each other row."""
    head = table[0]
    for row in table:
        if len(row.cells) == len(head.cells):
            yield row
        else:
            headers = counted(len(head.cells), "header")
            count = f"{counted(len(row.cells), 'cell')} under {headers}"
            problems.add(row.line, f"{count} (line {head.line}); give each header its cell")


def _without_blanks(table: list[TableRow]) -> list[TableRow]:
    """Return the table without empty columns, which spreadsheets often add at the end."""
    columns = zip(*(row.cells for row in table), strict=True)
    kept = [at for at, column in enumerate(columns) if any(column)]
    return [row._replace(cells=tuple(row.cells[at] for at in kept)) for row in table]


def _markdown(lines: Sequence[str]) -> Iterator[list[TableRow]]:
    for at in range(1, len(lines)):
        head, rule = lines[at - 1], lines[at]
        if "|" not in head or "|" not in rule or _RULE.fullmatch(rule) is None:
            continue
        rows = takewhile(lambda row: "|" in row[1], enumerate(lines[at + 1 :], start=at + 2))
        yield [TableRow(number, _markdown_cells(line)) for number, line in ((at, head), *rows)]


def _markdown_cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(cell.replace("\\|", "|").strip(" *`") for cell in _BAR.split(inner))


def _csv(lines: Sequence[str], problems: Problems) -> list[TableRow]:
    rows: list[TableRow] = []
    delimiter = ""
    for number, line in enumerate(lines, start=1):
        if not line.strip() or _COMMENT.match(line):
            continue
        delimiter = delimiter or max((",", ";", "\t"), key=line.count)
        try:
            # Line by line, since a quoted line break would hide an unclosed quote.
            (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            problems.add(number, f"this is no line of a table: {error}")
        else:
            rows.append(TableRow(number, tuple(cell.strip() for cell in cells)))
    return rows
