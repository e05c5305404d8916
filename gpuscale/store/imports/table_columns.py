"""Parse the headers and rows of a table in CSV or Markdown, and collect its problems."""

import csv
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from gpuscale.base.errors import DecodeError
from gpuscale.base.grouping import by_key
from gpuscale.base.text import counted
from gpuscale.records.environment_diff import listed

HEADERS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("gpus", "gpu", "n", "devices", "ranks"),
    "throughput": ("throughput", "samples/s", "images/s", "img/s"),
    "step_time": ("step time", "time/step"),
    "time": ("time", "epoch time", "time/epoch", "wall clock", "wall time", "runtime"),
    "case": ("case", "model", "benchmark"),
    "strategy": ("strategy",),
    "batch_per_gpu": ("batch/gpu", "batch size/gpu", "batch", "batch size"),
    "nodes": ("nodes",),
    "runs": ("runs",),
    "date": ("date",),
    "cluster": ("cluster", "machine", "system"),
    "note": ("note", "notes", "comment"),
    "skip": ("speedup", "efficiency"),
}
"""Known headers by meaning. Case, underscores and brackets are ignored, and a unit may follow;
`per` is read as `/`, and `sec` as `s`."""
_MEANINGS = {name: meaning for meaning, names in HEADERS.items() for name in names}
TIMES = ("step_time", "time")
"""Meanings of columns with times."""
MEASURES = ("throughput", *TIMES)
"""Meanings of columns with measurements, preferred first: throughputs exclude start-up."""
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_MOST_LINES = 8
_RULE = re.compile(r"[\s|:]*-[-\s|:]*")


class TableColumn(NamedTuple):
    """A table column whose header is known."""

    header: str
    meaning: str
    seconds: float = 1.0
    """Factor that converts a time in a cell without unit to seconds; 1 for other columns."""


class TableRow(NamedTuple):
    """The texts in one row of an imported table, with the row's line number for messages."""

    line: int
    texts: Mapping[str, str]
    """Cell texts, keyed by column meaning; several columns named `name` are joined."""

    @property
    def machine(self) -> str | None:
        """Machine that the row was measured on; None if the table has no column of machines."""
        return self.texts.get("cluster")


class Problems:
    """Problems found in a text, collected so that all are reported at once."""

    def __init__(self) -> None:
        self.found: list[DecodeError] = []
        self.head = 1
        """Number of the line with the headers."""

    def add(self, line: int, problem: str) -> None:
        """Record a problem with a line of the table."""
        self.found.append(DecodeError("", problem, line=line))

    @contextmanager
    def on(self, line: int, *, place: str = "") -> Iterator[None]:
        """Catch a DecodeError in a `with` block, and add it as a problem at this line and place."""
        try:
            yield
        except DecodeError as error:
            self.found.append(DecodeError(place, error.problem, line=line))

    def raise_all(self) -> None:
        """If there are problems, raise a `DecodeError` that lists them with their line numbers."""
        ordered = sorted(self.found, key=lambda problem: problem.line or 0)
        lines = by_key(((each.place, each.problem), each.line or 1) for each in ordered)
        errors = []
        for (place, problem), (first, *others) in lines.items():
            also = f" (also line {listed([*map(str, others)], _MOST_LINES)})" if others else ""
            errors.append(DecodeError(place, f"{problem}{also}", line=first))
        if len(errors) > 1:
            raise DecodeError("", f"{len(errors)} problems:", rows=[*map(str, errors)])
        if errors:
            raise errors[0]


def rows_in(
    text: str, asked: Mapping[str, str], problems: Problems
) -> tuple[list[TableColumn], list[TableRow]]:
    """Return valid columns and the rows of a table in `text`; `asked` maps headers to meanings."""
    lines = text.removeprefix("\ufeff").splitlines()
    table, *others = [*_markdown(lines)] or [[*_csv(lines, problems)]]
    (problems.head, head), *rows = table or [(1, ())]
    if others:
        starts = ", ".join(str(each[0][0]) for each in (table, *others))
        problems.add(problems.head, f"several tables (lines {starts}); keep one of them")
    columns = _columns_of(head, asked, problems)
    found = []
    for number, cells in rows:
        if len(cells) == len(head):
            by_meaning = by_key((column.meaning, cells[at]) for at, column in columns.items())
            texts = {meaning: ", ".join(filter(None, of)) for meaning, of in by_meaning.items()}
            found.append(TableRow(number, texts))
        else:
            count = f"{counted(len(cells), 'cell')} under {len(head)} headers"
            problems.add(number, f"{count} (line {problems.head}); give each header its cell")
    return [*columns.values()], found


_Line = tuple[int, tuple[str, ...]]
"""Number of a line, from 1, and its cells without surrounding spaces and Markdown emphasis."""


def _markdown(lines: Sequence[str]) -> Iterator[list[_Line]]:
    for at in range(1, len(lines)):
        head, rule = lines[at - 1], lines[at]
        if "|" in head and "|" in rule and _RULE.fullmatch(rule):
            rows = takewhile(lambda row: "|" in row[1], enumerate(lines[at + 1 :], start=at + 2))
            yield [(number, _markdown_cells(line)) for number, line in ((at, head), *rows)]


def _markdown_cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip(" *`") for cell in inner.split("|"))


def _csv(lines: Sequence[str], problems: Problems) -> Iterator[_Line]:
    delimiter = ""
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        delimiter = delimiter or max((",", ";", "\t"), key=line.count)
        try:
            # Line by line, since a quoted line break would hide an unclosed quote.
            (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            problems.add(number, f"not a line of a table: {error}")
        else:
            yield number, tuple(cell.strip() for cell in cells)


def parse_header(header: str) -> TableColumn | None:
    """Return the column that a header describes; None if the header is unknown."""
    words = " ".join(re.sub(r"[\s_()\[\]]", " ", header.lower()).split())
    words = re.sub(r"/sec(ond)?\b", "/s", words.replace(" per ", "/"))
    name, unit = (words, "") if words in _MEANINGS else words.rpartition(" ")[::2]
    meaning = _MEANINGS.get(name)
    if meaning in TIMES and unit in ("", *SECONDS):
        return TableColumn(header, meaning, SECONDS[unit or "s"])
    if meaning and (not unit or _MEANINGS.get(unit) == meaning):
        return TableColumn(header, meaning)
    return None


def _columns_of(
    headers: Sequence[str], asked: Mapping[str, str], problems: Problems
) -> dict[int, TableColumn]:
    """Return valid columns by position; `asked` maps headers to meanings; add problems found."""
    columns: dict[int, TableColumn] = {}
    first: dict[str, str] = {}
    wanted = {header.casefold(): meaning for header, meaning in asked.items()}
    for position, header in enumerate(headers):
        with problems.on(problems.head, place=f"column '{header}'"):
            column = _column_asked_for(header, wanted.pop(header.casefold(), None))
            other = first.setdefault(column.meaning, header)
            if other is not header and column.meaning not in ("name", "skip"):
                problem = f"means the same as '{other}'; leave one out: {_skip(header)}"
                raise DecodeError("", problem)
            columns[position] = column
    for header in (name for name in asked if name.casefold() in wanted):
        there = ", ".join(f"'{cell}'" for cell in headers)
        problems.add(problems.head, f"--column: no column is '{header}'; there are {there}")
    return columns


def _column_asked_for(header: str, meaning: str | None) -> TableColumn:
    if meaning in ("name", "skip"):
        return TableColumn(header, meaning)
    if (column := parse_header(meaning or header)) is not None:
        return column._replace(header=header)
    if meaning is not None:
        problem = f"--column: '{meaning}' is neither name, nor skip, nor a known header"
        raise DecodeError("", f"{problem} (docs/baselines.md)")
    named = f"--column {shlex.quote(f'{header}=name')}"
    problem = f"not known; make it part of the row's name with {named}"
    raise DecodeError("", f"{problem}, or leave it out: {_skip(header)}")


def _skip(header: str) -> str:
    return f"--column {shlex.quote(f'{header}=skip')}"
