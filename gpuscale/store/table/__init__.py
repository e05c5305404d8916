"""Read published figures from a table kept by hand, in CSV or Markdown."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.units import counted
from gpuscale.records import EntryKey, Hardware, PublishedFigure
from gpuscale.records.baseline import Timed
from gpuscale.records.json_text import from_builtins
from gpuscale.records.record import Gpus, Line, Name, PositiveCount, SamplesPerSecond, Seconds
from gpuscale.store.table.columns import (
    COUNTS,
    TIMES,
    TableColumn,
    columns_of,
    has_gpus,
    measure_in,
)
from gpuscale.store.table.numbers import (
    cell_of,
    is_missing_value,
    parse_day,
    parse_measures,
    parse_whole_number,
    rows_of_machine,
    rows_with_figure,
    signs_of_table,
    unused_columns,
)
from gpuscale.store.table.reading import Problems, TableRow, tables_in

_NAMES = {"case": Name, "strategy": Name, "note": Line}
_TIMES = tuple[Seconds, ...]
_THROUGHPUTS = tuple[SamplesPerSecond, ...]


class TableDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Default values for missing cells; a field is None if it has no default."""

    case: str | None = None
    strategy: str | None = None
    batch_per_gpu: int | None = None
    nodes: int | None = None
    timed: Timed | None = None
    """Part of the training that the times cover, if the column's header does not name it."""
    discard_first: int = 0
    """Number of leading time measurements to discard for each date."""
    cluster: str | None = None
    """Machine whose rows are used, if the table has a column of machines."""
    columns: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Meaning of each header that gpuscale does not know: `name`, `skip` or a known header."""


class FiguresOfTable(NamedTuple):
    """Figures read from a table; they must not be used if there are problems."""

    figures: tuple[PublishedFigure, ...]
    left_out: tuple[str, ...]
    """Skipped rows and columns, each with the reason."""
    problems: tuple[DecodeError, ...]


class _Measured(NamedTuple):
    """One valid row of a table."""

    line: int
    key: EntryKey
    nodes: int
    batch_per_gpu: int
    values: tuple[float, ...]
    """Times in seconds, or samples per second."""
    day: str | None
    runs: int
    note: str | None


def figures_from_table(text: str, defaults: TableDefaults, hardware: Hardware) -> FiguresOfTable:
    """Read the figures from the only table that has a column of GPU counts; collect all problems.

    Rows with the same case, strategy and number of GPUs are repetitions.
    """
    problems = Problems()
    asked = defaults.columns
    found = tables_in(text, problems)
    tables = [table for table in found if has_gpus(table[0], asked)]
    if len(tables) != 1:
        problem = "no table has a column 'gpus' (or 'n'); name one with --column HEADER=gpus"
        if tables:
            lines = ", ".join(str(table[0].line) for table in tables)
            problem = f"several tables have a column of GPUs (lines {lines}); keep one of them"
        problems.add(1, problem)
        if len(found) == 1:
            columns_of(found[0][0], problems, asked)
        return FiguresOfTable((), (), problems.in_order())
    head, *rows = tables[0]
    columns = columns_of(head, problems, asked)
    measure = measure_in(columns)
    if measure is None:
        problem = "expected a column of times or of throughput, found none"
        problems.add(head.line, f"{problem}; name it 'time (s)' or 'samples/s', or with --column")
    timed = None
    with problems.on(head.line):
        timed = _timed(measure, defaults)
    rows, of_others = rows_of_machine(rows, columns, defaults.cluster or "", problems)
    rows, without = rows_with_figure(rows, columns, measure)
    if not rows and not problems.found:
        problems.add(head.line, "the table has no rows with a figure")
    signs = signs_of_table(rows, columns, measure)
    table = _Table(columns, measure, timed, signs, defaults, hardware)
    figures = tuple(_figures(table, rows, problems))
    others = (f"'{name}' ({count})" for name, count in of_others.items())
    left_out = (
        *(f"the rows of {other}" for other in others),
        *(f"line {line}: {text}" for line, text in without.items()),
        *(f"column '{one.header}': {why}" for one, why in unused_columns(rows, columns, measure)),
    )
    return FiguresOfTable(figures, left_out, problems.in_order())


class _Table(NamedTuple):
    """Columns and defaults by which the rows of a table are read."""

    columns: Sequence[TableColumn | None]
    measure: TableColumn | None
    """Column with the figures; None if there is no such column and only problems are collected."""
    timed: Timed | None
    signs: Collection[str]
    """Decimal signs that the table may use."""
    defaults: TableDefaults
    hardware: Hardware


def _timed(measure: TableColumn | None, defaults: TableDefaults) -> Timed | None:
    """Return the part of the training that the times cover; None for throughputs."""
    if measure is None or measure.meaning not in ("time", "epoch_time"):
        return None
    of_header: Timed | None = "epoch" if measure.meaning == "epoch_time" else None
    if of_header is None and defaults.timed is None:
        problem = f"the column '{measure.header}' gives times; say with --timed what they span"
        raise DecodeError("", problem)
    if of_header and defaults.timed not in (None, of_header):
        problem = f"gives times of an epoch, and --timed says {defaults.timed}; correct one of them"
        raise DecodeError(f"column '{measure.header}'", problem)
    return of_header or defaults.timed


def _figures(
    table: _Table, rows: Sequence[TableRow], problems: Problems
) -> Iterator[PublishedFigure]:
    repetitions: dict[tuple[str, EntryKey], list[_Measured]] = {}
    for row in rows:
        with problems.on(row.line):
            measured = _measured(row.line, _values(row, table, problems), table, problems)
            if measured is not None:
                machine = cell_of(row, table.columns, "cluster") or ""
                known = repetitions.setdefault((machine.casefold(), measured.key), [measured])
                if known[0] is not measured:
                    _validate_alike(known[0], measured)
                    known.append(measured)
    for measured_rows in repetitions.values():
        with problems.on(measured_rows[0].line):
            yield _merged(measured_rows, table)


def _values(row: TableRow, table: _Table, problems: Problems) -> dict[str, Any]:
    """Return the values of the non-empty cells by column meaning; None for an invalid cell."""
    values: dict[str, Any] = {}
    for column, text in zip(table.columns, row.cells, strict=True):
        if column is None or not text or is_missing_value(text):
            continue
        meaning = "measures" if column is table.measure else column.meaning
        values.setdefault(meaning, None)
        with problems.on(row.line, place=f"column '{column.header}'"):
            if column is table.measure:
                kind = _TIMES if column.meaning in TIMES else _THROUGHPUTS
                values[meaning] = from_builtins(kind, parse_measures(text, column, table.signs))
            elif meaning in COUNTS:
                number = parse_whole_number(text, table.signs)
                values[meaning] = from_builtins(COUNTS[meaning], number)
            elif meaning in _NAMES:
                values[meaning] = from_builtins(_NAMES[meaning], text)
            elif meaning == "name":
                values[meaning] = (*(values[meaning] or ()), text)
            elif meaning == "date":
                values[meaning] = parse_day(text)
            else:
                values[meaning] = text
    return values


def _measured(
    line: int, cells: Mapping[str, Any], table: _Table, problems: Problems
) -> _Measured | None:
    """Return the row with defaults filled in; None if a value is missing or invalid."""
    defaults, gpus = table.defaults, cells.get("gpus")
    share = (cells["global_batch"] or gpus or 1) if "global_batch" in cells else 0
    said: dict[str, Any] = {
        "case": ", ".join(filter(None, (cells.get("case", defaults.case), *cells.get("name", ())))),
        "strategy": cells.get("strategy", defaults.strategy),
        "batch_per_gpu": cells.get("batch_per_gpu", share // (gpus or 1) or defaults.batch_per_gpu),
    }
    missing = [name for name, value in said.items() if not value and name not in cells]
    before = len(problems.found)
    for problem in _missing_texts(cells, missing, table):
        problems.add(line, problem)
    if gpus and share % gpus:
        problem = f"a global batch of {share} does not go evenly on {gpus} GPUs"
        problems.add(line, f"{problem}; give the batch per GPU")
    nodes = 1
    if gpus:
        with problems.on(line):
            nodes = _nodes(cells.get("nodes", defaults.nodes), gpus, table.hardware)
    bad = len(problems.found) > before or None in cells.values()
    if bad or table.measure is None or gpus is None:
        return None
    batch, lower = said["batch_per_gpu"], said["strategy"].lower()
    strategy = lower if lower in STRATEGIES else said["strategy"]
    values = tuple(_in_records(value, table.measure, gpus, batch) for value in cells["measures"])
    # Epochs belong to one job; several jobs or loops are repetitions.
    repetitions = 1 if table.timed == "epoch" else len(values)
    return _Measured(
        line=line,
        key=EntryKey(from_builtins(Name, said["case"]), strategy, gpus),
        nodes=nodes,
        batch_per_gpu=batch,
        values=values,
        day=cells.get("date"),
        runs=cells.get("runs", repetitions),
        note=cells.get("note"),
    )


def _missing_texts(
    cells: Mapping[str, Any], missing: Sequence[str], table: _Table
) -> Iterator[str]:
    if "gpus" not in cells:
        yield "no number of GPUs; fill its cell, or give a number of GPUs there"
    if table.measure is not None and "measures" not in cells:
        yield "neither a time nor a throughput; fill its cell, or delete the row"
    if missing:
        names = " and no ".join(name.partition("_")[0] for name in missing)
        options = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        remedy = "fill its cell, or give" if len(missing) == 1 else "fill their cells, or give"
        yield f"no {names}; {remedy} {options}"
    if "date" not in cells and any(each and each.meaning == "date" for each in table.columns):
        yield "no date; fill its cell, or remove the column"


def _in_records(value: float, measure: TableColumn, gpus: int, batch_per_gpu: int) -> float:
    """Convert a value to the unit used in records: seconds, or samples per second over all GPUs."""
    match measure.meaning:
        case "throughput_per_gpu":
            return value * gpus
        case "step_rate":
            return value * gpus * batch_per_gpu
        case "step_time":
            return gpus * batch_per_gpu / value if value else value
        case _:
            return value


def _nodes(nodes: int | None, gpus: int, hardware: Hardware) -> int:
    per_node = hardware.gpus_per_node
    if nodes is None:
        return 1 if per_node is None else -(-gpus // per_node)
    if nodes > gpus or (per_node is not None and gpus > nodes * per_node):
        of = "" if per_node is None else f" of {per_node} GPUs"
        on = f"{counted(nodes, 'node')}{of}"
        raise DecodeError("", f"{gpus} GPUs are not on {on}; correct one of the numbers")
    return nodes


def _validate_alike(earlier: _Measured, later: _Measured) -> None:
    if (earlier.nodes, earlier.batch_per_gpu) != (later.nodes, later.batch_per_gpu):
        problem = f"{later.key.label} has another batch or number of nodes in an earlier row"
        raise DecodeError("", f"{problem} (line {earlier.line}); name the cases apart")


def _merged(rows: Sequence[_Measured], table: _Table) -> PublishedFigure:
    """Combine all repetitions into one figure, ignoring discarded times."""
    first = rows[0]
    discard = table.defaults.discard_first if table.timed else 0
    nights: dict[str | None, list[float]] = defaultdict(list)
    for row in rows:
        nights[row.day] += row.values
    for values in nights.values():
        if len(values) <= discard:
            times = counted(len(values), "time")
            problem = f"{first.key.label} has {times}, and --discard-first takes {discard}"
            raise DecodeError("", problem)
    used = [value for values in nights.values() for value in values[discard:]]
    discarded = [value for values in nights.values() for value in values[:discard]]
    notes = dict.fromkeys(row.note for row in rows if row.note)
    return PublishedFigure(
        case=first.key.case,
        strategy=first.key.strategy,
        gpus=first.key.gpus,
        nodes=first.nodes,
        batch_per_gpu=first.batch_per_gpu,
        runs=sum(row.runs for row in rows),
        times_s=(*discarded, *used) if table.timed else (),
        timed=table.timed,
        discard_first=len(discarded),
        samples_per_s=None if table.timed else statistics.fmean(used),
        nights={
            day: statistics.fmean(values[discard:])
            for day, values in sorted(nights.items(), key=lambda item: item[0] or "")
            if day is not None
        },
        note="; ".join(notes) or None,
    )
