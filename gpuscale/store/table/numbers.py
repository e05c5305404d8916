"""Parse numbers, times and dates in tables, as people write them."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from gpuscale.base.errors import DecodeError
from gpuscale.base.printable import shown
from gpuscale.store.table.columns import (
    COUNTS,
    MEASURES,
    NAMES,
    SECONDS,
    TEXTS,
    TIMES,
    TableColumn,
    parse_unit,
)
from gpuscale.store.table.reading import Problems, TableRow

_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_PLAIN = re.compile(_NUMBER)
_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:[.,]\d*)?)")
_WITH_UNITS = re.compile(rf"(?:(?:{_NUMBER})\s*[a-z]+\s*)+")
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_WITH_RATE = re.compile(rf"({_NUMBER})\s*([a-z]+/[a-z/]+)")
_SEVERAL = re.compile(r";\s*|,\s+")
_SPACES = " '\u2019\u00a0\u202f\u2009"
# Without the digits after the colon of a clock time.
_TOKEN = re.compile(rf"(?<![\d.,:])\d[\d.,]*(?:[{_SPACES}]\d{{3}}(?!\d)[\d.,]*)*")
_READINGS = {
    decimal: re.compile(
        rf"((?!0)\d{{1,3}}(?:[{thousands}{_SPACES}]\d{{3}})+|\d+)(?:{re.escape(decimal)}(\d*))?"
    )
    for decimal, thousands in ((".", ","), (",", "."))
}
"""Number patterns, by decimal sign."""
SIGNS = tuple(_READINGS)
_PARTED_BY_SPACES = re.compile(r"\d{3} ")
_DATES = ("%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y")


def decimal_signs(texts: Iterable[str], *, whole: bool = False) -> set[str]:
    """Return the decimal signs that unambiguous numbers in the texts use."""
    found: set[str] = set()
    for token in (token for text in texts for token in _TOKEN.findall(text)):
        signs = _readings(token, whole=whole)
        if len(signs) == 1 and re.search("[.,]", token):
            found.update(signs)
    return found


def _readings(token: str, *, whole: bool) -> dict[str, str]:
    """Return the possible readings of a number in plain notation (`1563.5`), by decimal sign."""
    found = {}
    for sign, reading in _READINGS.items():
        match = reading.fullmatch(token)
        if match is not None and not (whole and match[2] is not None):
            decimals = "" if match[2] is None else f".{match[2]}"
            found[sign] = re.sub(r"\D", "", match[1]) + decimals
    return found


def _plain(text: str, signs: Collection[str], *, whole: bool = False) -> str:
    """Return the text with numbers in plain notation: `1563.5` for `1 563,5`.

    `signs` are the decimal signs found elsewhere in the table. If there are none, the comma in
    `1,563` is ambiguous, and the point in `1.563` is a decimal sign.
    """

    def number(match: re.Match[str]) -> str:
        token = match[0]
        readings = _readings(token, whole=whole)
        if _PARTED_BY_SPACES.match(token):
            problem = f"'{token}' may be one number or several; write it without spaces"
            raise DecodeError("", f"{problem}, or several with ';' between them")
        if len(set(readings.values())) < 2:
            return next(iter(readings.values()), token)
        usual = set(signs) or ({"."} if "," not in token else set())
        if len(usual) == 1:
            return readings[usual.pop()]
        one, other = sorted(readings.values(), key=len)
        raise DecodeError("", f"'{token}' may be {one} or {other}; write which it is, like this")

    return _TOKEN.sub(number, text)


def parse_whole_number(text: str, signs: Collection[str]) -> int:
    """Parse a whole number, such as `1024`, `1,024` or `1 024`."""
    plain = _plain(text, signs, whole=True)
    if re.fullmatch(r"\d{1,15}", plain) is None:
        raise DecodeError("", f"expected a whole number, found {shown(text)}")
    return int(plain)


def parse_measures(text: str, column: TableColumn, signs: Collection[str]) -> tuple[float, ...]:
    """Parse a cell's values, separated by `;` or `, `; return them in seconds or per second."""
    measure = _seconds if column.meaning in TIMES else _rate
    parts = (part.strip().lower() for part in _SEVERAL.split(text))
    return tuple(measure(_plain(part, _signs_in(part, signs)), column, part) for part in parts)


def _signs_in(part: str, signs: Collection[str]) -> Collection[str]:
    """Return the decimal sign in a time such as `24 m 48.169 s`, or `signs` if it has none."""
    sign = "." if "." in part else ","
    return {sign} if len(_PART.findall(part)) > 1 else signs


def _seconds(text: str, column: TableColumn, written: str) -> float:
    """Parse a time, `145` (in the column's unit), `5:42:11.9` or `2 min 25 s`, into seconds."""
    if _PLAIN.fullmatch(text):
        return float(text) * column.factor
    if clock := _CLOCK.fullmatch(text):
        seconds = float(clock[3].replace(",", "."))
        return float(clock[1] or 0) * 3600 + float(clock[2]) * 60 + seconds
    if _WITH_UNITS.fullmatch(text):
        parts = _PART.findall(text)
        if all(unit in SECONDS for _, unit in parts):
            return sum(float(number) * SECONDS[unit] for number, unit in parts)
    problem = f"expected a time such as 145, 2:25 or 2 min 25 s, found {shown(written)}"
    raise DecodeError("", problem)


def _rate(text: str, column: TableColumn, written: str) -> float:
    """Parse a rate, such as `1520.5` (in the column's unit) or `1520.5 img/s`."""
    if _PLAIN.fullmatch(text):
        return float(text) * column.factor
    if found := _WITH_RATE.fullmatch(text):
        measured = parse_unit(found[2])
        if measured is not None and measured[0] == column.meaning:
            return float(found[1]) * measured[1]
    raise DecodeError("", f"expected a number such as 1520.5, found {shown(written)}")


def parse_day(text: str) -> str:
    """Parse a date, `2026-09-01`, `1.9.2026` or `1 Sep 2026`, and return it as `2026-09-01`."""
    with suppress(ValueError):
        return datetime.fromisoformat(text).date().isoformat()
    for written in _DATES:
        with suppress(ValueError):
            return datetime.strptime(text.replace(",", ""), written).date().isoformat()
    raise DecodeError("", f"expected a date such as 2026-09-01, found {shown(text)}")


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
    """Return the decimal signs that unambiguous numbers use, or else the only credible sign."""
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
