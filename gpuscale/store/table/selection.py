"""Select the rows and columns of a table to make figures from, and find the decimal sign."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from gpuscale.base.errors import DecodeError
from gpuscale.store.table.columns import COUNTS, MEASURES, NAMES, TEXTS, TIMES, TableColumn
from gpuscale.store.table.numbers import SIGNS, decimal_signs, parse_measures, parse_whole_number
from gpuscale.store.table.reading import Problems, TableRow

_NO_VALUE = re.compile(r"[-–—?]+|n/?a|none|null|tbd", re.IGNORECASE)
_FAILED = re.compile(
    r"(?:error|oom|out of memory|fail|crash|killed|timed? ?out|nan|abort)\b.*|failed|crashed",
    re.IGNORECASE,
)
_MOST_APART = 30.0
"""Largest credible ratio of throughputs per GPU in one case; misread decimal signs give 1000."""


def cell_of(row: TableRow, columns: Sequence[TableColumn | None], meaning: str) -> str | None:
    """Return the row's cell in the column with this meaning; None if there is no such column."""
    for column, text in zip(columns, row.cells, strict=True):
        if column is not None and column.meaning == meaning:
            return text
    return None


def rows_of_machine(
    rows: Sequence[TableRow],
    columns: Sequence[TableColumn | None],
    cluster: str,
    problems: Problems,
) -> tuple[list[TableRow], Counter[str]]:
    """Return the rows of the requested machine, and the number of rows of each other machine.

    If that machine has no rows, return all rows, so that other problems in them are found too.
    """
    found: list[TableRow] = []
    others: Counter[str] = Counter()
    for row in rows:
        machine = cell_of(row, columns, "cluster")
        if machine == "":
            problems.add(row.line, "no machine; fill its cell, or delete the row")
        elif machine is None or machine.casefold() == cluster.casefold():
            found.append(row)
        else:
            others[machine] += 1
    if others and not found:
        named = ", ".join(f"'{machine}'" for machine in others)
        problem = f"no row is of '{cluster}'; choose one of {named} with --cluster"
        problems.add(rows[0].line, problem)
    return found or list(rows), others


def rows_with_figure(
    rows: Sequence[TableRow], columns: Sequence[TableColumn | None], measure: TableColumn | None
) -> tuple[list[TableRow], dict[int, str]]:
    """Return the rows with a measurement, and the cell texts of the other rows by line number."""
    if measure is None:
        return list(rows), {}
    at = columns.index(measure)
    others = {
        row.line: text
        for row in rows
        if _FAILED.fullmatch(text := row.cells[at]) or is_missing_value(text)
    }
    return [row for row in rows if row.line not in others], others


def is_missing_value(text: str) -> bool:
    """True if the text of a cell marks a missing value, such as `–` or `n/a`."""
    return _NO_VALUE.fullmatch(text) is not None


def unused_columns(
    rows: Sequence[TableRow], columns: Sequence[TableColumn | None], measure: TableColumn | None
) -> Iterator[tuple[TableColumn, str]]:
    """Yield the columns that are not used for figures, each with the reason."""
    for at, column in enumerate(columns):
        if column is None or measure is None or column is measure:
            continue
        if column.meaning == "skip":
            alike: dict[object, set[str]] = defaultdict(set)
            for row in rows:
                alike[_name_of(row, columns), cell_of(row, columns, "gpus")].add(row.cells[at])
            merged = any(len(texts) > 1 for texts in alike.values())
            beside = "; rows that differ in nothing else count as repetitions" if merged else ""
            yield column, f"as --column asks{beside}"
        elif column.meaning == "derived":
            yield column, "follows from the figures"
        elif column.meaning in MEASURES:
            yield column, f"'{measure.header}' says it better"


def _name_of(row: TableRow, columns: Sequence[TableColumn | None]) -> tuple[str, ...]:
    named = zip(columns, row.cells, strict=True)
    return tuple(text for column, text in named if column and column.meaning in NAMES)


def signs_of_table(
    rows: Sequence[TableRow], columns: Sequence[TableColumn | None], measure: TableColumn | None
) -> Collection[str]:
    """Return the decimal signs used by unambiguous numbers, or else the only credible sign."""
    found: set[str] = set()
    for at, column in enumerate(columns):
        if column is not None and column.meaning not in TEXTS:
            whole = column.meaning in COUNTS
            found |= decimal_signs((row.cells[at] for row in rows), whole=whole)
    if measure is None:
        return found
    credible = [sign for sign in SIGNS if _is_credible(rows, columns, measure, sign)]
    return found or (credible if len(credible) == 1 else ())


def _is_credible(
    rows: Sequence[TableRow], columns: Sequence[TableColumn | None], measure: TableColumn, sign: str
) -> bool:
    """True if, read with this decimal sign, the throughputs per GPU of each case are credible."""
    by_case: dict[object, list[float]] = defaultdict(list)
    for row in rows:
        # Invalid cells are reported later.
        with suppress(DecodeError, ZeroDivisionError):
            values = parse_measures(row.cells[columns.index(measure)], measure, (sign,))
            gpus = parse_whole_number(cell_of(row, columns, "gpus") or "", (sign,))
            share = gpus if measure.meaning in TIMES else 1 / gpus
            by_case[_name_of(row, columns)] += [value * share for value in values]
    return all(max(values) <= _MOST_APART * min(values) for values in by_case.values())
