"""Columns, the one model of tables in every format: name, value, form and interval of a cell."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from gpuscale.base.units import format_seconds, significant
from gpuscale.records import Estimate
from gpuscale.reports.phrases import UNKNOWN, bounds_text, spread_text
from gpuscale.reports.screen import table

Tone = Literal["loss", "doubt", "pass", "slow", "slower", "slowest", ""]
"""The meaning of a colour, which the words of a cell give too."""
_Row = TypeVar("_Row")
_ENDS = ("low", "high")
# A spreadsheet runs texts that begin like this.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Cell(NamedTuple):
    """The text of a cell."""

    text: str
    below: str = ""
    """Second, smaller line on a page, such as the interval or the value before."""
    tone: Tone = ""
    link: str = ""
    """Address on another page; empty for none."""

    @property
    def line(self) -> str:
        """The whole cell in one line."""
        return f"{self.text} {self.below}".rstrip()


@dataclass(frozen=True, slots=True)
class Column(Generic[_Row]):
    """A column of a table: scripts know it by its field, people by its header."""

    field: str
    header: str = ""
    """Empty for a column of CSV and JSON only."""
    form: Callable[[Any], str] = str
    interval: Literal["", "±", "[]"] = ""
    """Form of an estimate's interval; empty for values that are no estimates."""
    value: Callable[[_Row], object] | None = None
    """The value in a row; None for the row's attribute of that name."""

    def value_in(self, row: _Row) -> object:
        """The value in a row; None if unknown."""
        return getattr(row, self.field) if self.value is None else self.value(row)

    def cell(self, row: _Row) -> Cell:
        """The number in its form, with its interval below it."""
        value = self.value_in(row)
        if not isinstance(value, Estimate):
            return Cell(UNKNOWN if value is None else self.form(value))
        is_spread = self.interval == "±"
        interval = spread_text(value) if is_spread else bounds_text(value, self.form)
        return Cell(self.form(value.value), interval)


STEP_TIME: Column[Any] = Column("step_time_s", "step time", format_seconds, "±")
SAMPLES: Column[Any] = Column("samples_per_s", "samples/s", significant, "±")
SPEEDUP: Column[Any] = Column("speedup", "speedup", "{:.2f}".format, "[]")
EFFICIENCY: Column[Any] = Column("efficiency", "efficiency", "{:.2f}".format, "[]")
SCALING = (STEP_TIME, SAMPLES, SPEEDUP, EFFICIENCY)
"""The columns that points of a curve and both sides of a comparison have."""


def text_table(
    rows: Sequence[Mapping[str, Cell]],
    columns: int | None = None,
    *,
    keys: int = 2,
    first: Sequence[str] = (),
    left: Collection[str] | None = None,
    spare: Collection[str] = (),
) -> str:
    """Rows of cells as a table of text, which `screen.table` fits into so many columns."""
    texts = [[cell.line for cell in row.values()] for row in rows]
    return table([*rows[0]], texts, columns, keys=keys, first=first, left=left, spare=spare)


def csv_text(columns: Sequence[Column[_Row]], rows: Iterable[_Row], **common: object) -> str:
    """Rows as CSV (RFC 4180), without a line break at the end; unknown is empty.

    An estimate takes three columns. The last columns are the common values of all rows.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = ([c.field, *(f"{c.field}_{end}" for end in _ENDS if c.interval)] for c in columns)
    writer.writerow([*chain.from_iterable(names), *common])
    for row in rows:
        cells: list[object] = []
        for column in columns:
            value = column.value_in(row)
            cells.append(value.value if isinstance(value, Estimate) else value)
            cells += [getattr(value, end, None) for end in _ENDS if column.interval]
        writer.writerow(map(_plain, (*cells, *common.values())))
    return file.getvalue().rstrip("\n")


def _plain(value: object) -> object:
    """A number with a point and at most twelve significant digits, and no formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
