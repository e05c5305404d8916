"""Import tables kept by hand, whose values become nightly results or baseline entries."""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import UNRECORDED, UNRECORDED_GPU
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.text import shown
from gpuscale.records import EntryKey, PublishedFigure, record
from gpuscale.records.baseline import Timed
from gpuscale.store.imports.session import Defaults, RecordedValue, Session
from gpuscale.store.imports.table_columns import (
    MEASURES,
    SECONDS,
    TIMES,
    Problems,
    TableColumn,
    TableRow,
    rows_in,
)

_NO_VALUE = re.compile(
    r"[-–—?]*|n/?a|(?:nan|none|error|oom|out of memory|fail|crash|killed|time).*", re.IGNORECASE
)
"""Pattern of cell texts that stand for a missing value, such as a failed measurement."""
_KINDS: Mapping[str, tuple[Any, str]] = {
    "gpus": (record.Gpus, "a whole number"),
    "nodes": (record.Gpus, "a whole number"),
    "batch_per_gpu": (record.PositiveCount, "a whole number"),
    "runs": (record.PositiveCount, "a whole number"),
    "date": (record.Day, "a date such as 2026-09-01"),
    "case": (record.Name, "a name"),
    "strategy": (record.Name, "a name"),
}
"""Type of a column's cells and its description, by meaning; other columns have lines of text."""
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d*)?)")
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_SEVERAL = re.compile(r";|,\s")


class _Measured(NamedTuple):
    line: int
    key: EntryKey
    nodes: int
    batch_per_gpu: int
    values: tuple[float, ...]
    """Times in seconds, or samples per second."""
    day: str | None
    runs: int
    note: str | None


def sessions(path: Path, text: str, defaults: Defaults) -> Iterator[Session]:
    """Yield a session for each date in a file's table; raise one DecodeError with all problems.

    Rows with equal case, strategy and GPUs are repetitions; undated rows get the file's mtime.
    """
    problems = Problems()
    columns, rows = rows_in(text, defaults.columns, problems)
    measure = _measure(columns, defaults, problems)
    unused = [c for c in columns if c.meaning in ("skip", *MEASURES) and c is not measure]
    rows, without = _rows_to_read(rows, measure, defaults, problems)
    timed = defaults.timed if measure is not None and measure.meaning == "time" else None
    repetitions: dict[EntryKey, list[_Measured]] = defaultdict(list)
    for row in rows:
        cells = _values(row, [column for column in columns if column not in unused], problems)
        with problems.on(row.line):
            if (measured := _measured(row, cells, measure, defaults)) is not None:
                first = next(iter(repetitions[measured.key]), measured)
                if (first.nodes, first.batch_per_gpu) != (measured.nodes, measured.batch_per_gpu):
                    label, line = first.key.label_on(""), first.line
                    problem = f"{label} has another batch or number of nodes in an earlier row"
                    raise DecodeError("", f"{problem} (line {line}); name the cases apart")
                repetitions[measured.key].append(measured)
    values: list[tuple[str | None, RecordedValue]] = []
    # A column of devices or ranks, which means the same, does not say that they are GPUs.
    has_gpus = any("gpu" in column.header.lower() for column in columns)
    device = UNRECORDED_GPU if has_gpus else UNRECORDED
    for alike in repetitions.values():
        with problems.on(alike[0].line):
            values += _recorded(alike, timed, device)
    problems.raise_all()
    without += (f"column '{column.header}'" for column in unused)
    for day, of_night in by_key(values).items():
        at = None if day is None else datetime.fromisoformat(day).replace(tzinfo=UTC)
        yield Session(
            key=path.stem,
            began_s=path.stat().st_mtime if at is None else at.timestamp(),
            system=rows[0].machine and (defaults.machine or rows[0].machine),
            values=tuple(of_night),
            without_value=tuple(without),
        )
        without.clear()


def _measure(
    columns: Sequence[TableColumn], defaults: Defaults, problems: Problems
) -> TableColumn | None:
    """Return the measurement column, if any; add a problem if it or the GPU column is missing."""
    by_meaning = {column.meaning: column for column in columns}
    measure = next((by_meaning[name] for name in MEASURES if name in by_meaning), None)
    if "gpus" not in by_meaning:
        problem = "no column of GPUs; name it 'gpus', or name one with --column HEADER=gpus"
        problems.add(problems.head, problem)
    if measure is None:
        problem = "expected a column of times or of throughput, found none"
        remedy = "name it 'time (s)' or 'samples/s', or with --column"
        problems.add(problems.head, f"{problem}; {remedy}")
    elif measure.meaning == "time" and defaults.timed is None:
        problem = f"the column '{measure.header}' gives times; say with --timed what they span"
        problems.add(problems.head, problem)
    return measure


def _rows_to_read(
    rows: Sequence[TableRow], measure: TableColumn | None, defaults: Defaults, problems: Problems
) -> tuple[list[TableRow], list[str]]:
    """Return the rows to import (right machine, not empty) and notes that describe the others."""
    machines = Counter(row.machine for row in rows if row.machine is not None)
    wanted = (defaults.machine or next(iter(machines), "")).casefold()
    found = [row for row in rows if row.machine is None or row.machine.casefold() == wanted]
    others = [machine for machine in machines if machine.casefold() != wanted]
    if others and not (found and defaults.machine):
        named = ", ".join(f"'{machine}'" for machine in machines)
        remedy = "choose one with --system, or with --cluster that of a baseline"
        problems.add(rows[0].line, f"the rows are of {named}; {remedy}")
        # All rows are kept, so that their problems are reported too.
        found = [*rows]
    without = [f"the rows of '{machine}' ({machines[machine]})" for machine in others]
    if measure is None:
        return found, without
    texts = {row.line: row.texts[measure.meaning] for row in found}
    empty = {line: text for line, text in texts.items() if _NO_VALUE.fullmatch(text)}
    without += (f"line {line}: {text or 'no figure'}" for line, text in empty.items())
    if len(empty) == len(found) and not problems.found:
        problems.add(1, "the table has no rows with a figure")
    return [row for row in found if row.line not in empty], without


def _values(row: TableRow, columns: Sequence[TableColumn], problems: Problems) -> dict[str, Any]:
    """Return the row's values, keyed by column meaning; the value of an invalid cell is None."""
    values: dict[str, Any] = {}
    for column in columns:
        text = row.texts[column.meaning]
        with problems.on(row.line, place=f"column '{column.header}'"):
            if column.meaning == "gpus" or not _NO_VALUE.fullmatch(text):
                values[column.meaning] = None
                values[column.meaning] = _cell_value(text, column)
    return values


def _cell_value(text: str, column: TableColumn) -> Any:
    """Parse a cell; for a measurement, return a tuple of times in seconds or of throughputs."""
    if column.meaning in MEASURES:
        bounded = record.Seconds if column.meaning in TIMES else record.SamplesPerSecond
        numbers = (_number(part.strip().lower(), column) for part in _SEVERAL.split(text))
        return tuple(record.from_builtins(bounded, number) for number in numbers)
    kind, words = _KINDS.get(column.meaning, (record.Line, "a line"))
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise DecodeError("", f"expected {words}, found {shown(text)}") from None


def _number(text: str, column: TableColumn) -> float:
    """Parse a throughput, or convert `2:25`, `2 min` or `145` (in the column's unit) to seconds."""
    if re.fullmatch(_NUMBER, text):
        return float(text) * column.seconds
    if column.meaning not in TIMES:
        raise DecodeError("", f"expected a number such as 1520.5, found {shown(text)}")
    if clock := _CLOCK.fullmatch(text):
        return float(clock[1] or 0) * 3600 + float(clock[2]) * 60 + float(clock[3])
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text) or any(unit not in SECONDS for _, unit in parts):
        problem = f"expected a time such as 145, 2:25 or 2 min 25 s, found {shown(text)}"
        raise DecodeError("", problem)
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def _measured(
    row: TableRow, cells: Mapping[str, Any], measure: TableColumn | None, defaults: Defaults
) -> _Measured | None:
    """Return the row with defaults filled in; None if a cell is invalid or a column is missing."""
    case = ", ".join(filter(None, (cells.get("case", defaults.case), cells.get("name"))))
    said = {
        "case": case,
        "strategy": cells.get("strategy", defaults.strategy),
        "batch_per_gpu": cells.get("batch_per_gpu", defaults.batch_per_gpu),
    }
    if missing := [name for name, value in said.items() if not value and name not in cells]:
        names = " and no ".join(name.partition("_")[0] for name in missing)
        options = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise DecodeError("", f"no {names}; fill the cell, or give {options}")
    if None in cells.values() or measure is None or "gpus" not in cells:
        return None
    gpus, batch, lower = cells["gpus"], said["batch_per_gpu"], said["strategy"].lower()
    strategy = lower if lower in STRATEGIES else said["strategy"]
    values = cells[measure.meaning]
    if measure.meaning == "step_time":
        values = tuple(gpus * batch / value for value in values)
    return _Measured(
        line=row.line,
        key=EntryKey(case, strategy, gpus),
        nodes=cells.get("nodes") or math.ceil(gpus / (defaults.gpus_per_node or gpus)),
        batch_per_gpu=batch,
        values=values,
        day=cells.get("date"),
        # Epochs belong to one job; several jobs or loops are repetitions.
        runs=cells.get("runs", 1 if defaults.timed == "epoch" else len(values)),
        note=cells.get("note"),
    )


def _recorded(
    rows: Sequence[_Measured], timed: Timed | None, device: str
) -> Iterator[tuple[str | None, RecordedValue]]:
    """Yield (date or None, value) per repetition; all values share one figure, made of all rows."""
    nights = by_key((row.day, value) for row in rows for value in row.values)
    (case, strategy, gpus), first = rows[0].key, rows[0]
    values = [value for row in rows for value in row.values]
    figure = PublishedFigure(
        case=case,
        strategy=strategy,
        gpus=gpus,
        nodes=first.nodes,
        batch_per_gpu=first.batch_per_gpu,
        runs=sum(row.runs for row in rows),
        times_s=tuple(values) if timed else (),
        timed=timed,
        samples_per_s=None if timed else statistics.fmean(values),
        nights={day: statistics.fmean(nights[day]) for day in sorted(filter(None, nights))},
        note="; ".join(dict.fromkeys(row.note for row in rows if row.note)) or None,
    )
    for day, of_night in nights.items():
        for value in of_night:
            recorded = RecordedValue(
                case=f"{case}, {strategy}",
                metric=f"{timed}_s" if timed else "samples_per_s",
                value=value,
                device=device,
                gpus=gpus,
                published=figure,
            )
            yield day, recorded
