"""Table columns for every report format: how to get a cell's value, text and interval."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from gpuscale.analysis.outliers import odd_run
from gpuscale.analysis.scaling import level_at
from gpuscale.base.host import UNRECORDED
from gpuscale.base.text import format_seconds, significant
from gpuscale.records import Configuration, Estimate, PointKey, Run, Scaling
from gpuscale.records.environment_diff import listed
from gpuscale.reports import phrases
from gpuscale.reports.screen import table

Tone = Literal["loss", "doubt", "pass", ""]
"""Meaning of a cell's colour on a page; the cell's text conveys the same meaning."""
_Row = TypeVar("_Row")
_Cell = TypeVar("_Cell")
_Content = TypeVar("_Content")
_ENDS = ("low", "high")
# A spreadsheet evaluates text that begins with one of these.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Format(NamedTuple, Generic[_Content]):
    """A format of a report: its purpose, and the function that renders it."""

    purpose: str
    render: Callable[[_Content], str]


class Cell(NamedTuple):
    """A table cell: its text, an optional second line, colour and link."""

    text: str
    below: str = ""
    """Second line, in small type on a page, such as the interval or the baseline value."""
    tone: Tone = ""
    link: str = ""
    """Relative URL of the page that the text links to; empty for no link."""

    @property
    def line(self) -> str:
        """The text and the second line, joined into one line."""
        return f"{self.text} {self.below}".rstrip()


class Column(msgspec.Struct, Generic[_Row], frozen=True):
    """A table column: `field` is its name in CSV and JSON, `header` its title in tables."""

    field: str
    header: str = ""
    """Column title; empty if the column appears only in CSV and JSON."""
    form: Callable[[Any], str] | None = str
    """Function that formats a value; if None, the value is shown in the unit of its row."""
    interval: Literal["", "±", "[]"] = ""
    """Notation for the intervals of estimates; empty if the values are not estimates."""
    value: Callable[[_Row], object] | None = None
    """Function that returns a row's value; if None, the row attribute named by `field` is used."""

    def value_in(self, row: _Row) -> object:
        """Return this column's value for a row; None if unknown."""
        return getattr(row, self.field) if self.value is None else self.value(row)

    def cell(self, row: _Row) -> Cell:
        """Return the formatted value for a row; an estimate's interval goes on the second line."""
        value = self.value_in(row)
        form = self.form or partial(phrases.amount_text, unit=getattr(row, "unit", ""))
        if not isinstance(value, Estimate):
            return Cell(phrases.UNKNOWN if value is None else form(value))
        written = phrases.spread_text if self.interval == "±" else phrases.bounds_text
        interval = phrases.OPEN if phrases.is_uncertain(value) else written(value, form)
        return Cell(form(value.value), interval)


def fields_of(attribute: str, *names: str) -> list[Column[Any]]:
    """Return columns for the named fields; `attribute` is their path in a row: `entry.key`."""
    return [Column(name, value=attrgetter(f"{attribute}.{name}")) for name in names]


VALUE: Column[Any] = Column("value", "value", None, "±")
"""Column of values for rows that measure a metric instead of the step time."""
STEP_TIME: Column[Any] = Column("step_time_s", "step time", format_seconds, "±")
SAMPLES: Column[Any] = Column("samples_per_s", "samples/s", significant, "±")
SPEEDUP: Column[Any] = Column("speedup", "speedup", "{:.2f}".format, "±")
EFFICIENCY: Column[Any] = Column("efficiency", "efficiency", "{:.2f}".format, "±")
SCALING = (VALUE, STEP_TIME, SAMPLES, SPEEDUP, EFFICIENCY)
"""Columns that apply to scaling points and to each side of a comparison."""


def level_columns(configurations: Iterable[Configuration | None]) -> dict[str, Column[Any]]:
    """Return the columns for what was measured (step times, metrics or both), keyed by header."""
    has_metric = {each is not None and each.metric is not None for each in configurations}
    of_metrics = {"value": VALUE} if True in has_metric else {}
    of_steps = {} if has_metric == {True} else {"step time": STEP_TIME, "samples/s": SAMPLES}
    return {**of_metrics, **of_steps}


_ON_CPU = {"GPUs": "CPU ranks", "batch/GPU": "batch/rank", "GPU-hours": "rank-hours"}
"""Headers for measurements on CPU ranks, keyed by the corresponding headers for GPUs."""
_UNRECORDED = {"GPUs": "devices", "batch/GPU": "batch/device", "GPU-hours": "device-hours"}
"""Headers for devices of unknown type, keyed by the corresponding headers for GPUs."""


def named_on(devices: Iterable[str], rows: Iterable[Mapping[str, _Cell]]) -> list[dict[str, _Cell]]:
    """Return the rows; rename headers such as `GPUs` if the devices are CPUs or unknown."""
    kinds = {*devices}
    names = _UNRECORDED if UNRECORDED in kinds else _ON_CPU if kinds == {"cpu"} else {}
    return [{names.get(header, header): cell for header, cell in row.items()} for row in rows]


def level_text(level: Scaling) -> str:
    """Return the step time with its interval, or the metric that was measured instead."""
    return (STEP_TIME if level.value is None else VALUE).cell(level).line


def odd_run_text(runs: Iterable[Run]) -> str:
    """Describe the outlier among the runs of a row; return an empty text if there is none.

    Example: `run 3 (2026-11-20 02:10) stands out: 140 ms, the others 100 ms to 101 ms`. If another
    run used different hosts, the outlier's hosts follow its start time.
    """
    by_cost = sorted((run for run in runs if run.is_valid), key=lambda run: run.log_cost)
    if (place := odd_run([run.log_cost for run in by_cost])) is None:
        return ""
    odd = by_cost.pop(place)
    shown = (odd, by_cost[0], by_cost[-1])
    levels = [level_text(level_at(PointKey.of(run), run.log_cost)) for run in shown]
    hosts = [
        sorted({rank.host for rank in run.ranks} | {node.host for node in run.nodes})
        for run in (odd, *by_cost)
    ]
    on = listed(hosts[0]) if any(other != hosts[0] for other in hosts) else ""
    found = ", ".join(filter(None, (phrases.times_text([odd], ""), on)))
    name = f"run {odd.index}{found and f' ({found})'}"
    return f"{name} stands out: {levels[0]}, the others {phrases.format_range(levels[1:])}"


def text_table(
    rows: Sequence[Mapping[str, Cell]], columns: int | None = None, first: Sequence[str] = ()
) -> str:
    """Return rows as a text table, split if wider than `columns`; headers in `first` come early."""
    return table([*rows[0]], [[cell.line for cell in row.values()] for row in rows], columns, first)


def csv_text(columns: Sequence[Column[_Row]], rows: Iterable[_Row], **common: object) -> str:
    """Return rows as CSV (RFC 4180), without a final line break; unknown values are empty.

    An estimate takes three columns: value, low and high. `common` adds columns of constant value.
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
    """Format a CSV value: at most 12 digits, lower-case booleans; quote spreadsheet formulas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
