"""Published figures from a table that people keep by hand, as CSV or in Markdown."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuscale.errors import DecodeError
from gpuscale.printable import shown, text_problem
from gpuscale.records import EntryKey, Hardware, PublishedFigure
from gpuscale.records.as_json import converted
from gpuscale.records.baseline import Timed
from gpuscale.records.record import Gpus, Name, PositiveCount, SamplesPerSecond, Seconds

HEADERS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("gpus", "gpu", "n", "n gpus", "number of gpus", "# gpus", "#gpus", "devices", "ranks"),
    "time": (
        *("time", "t", "t(n)", "wall clock", "wall time", "walltime", "runtime", "run time"),
        *("elapsed", "duration", "training time", "epoch time", "seconds", "minutes", "hours"),
    ),
    "throughput": (
        *("throughput", "samples/s", "samples/sec", "samples per s", "samples per second"),
        *("images/s", "images/sec", "images per second", "img/s"),
    ),
    "case": ("case", "model", "workload"),
    "strategy": ("strategy",),
    "batch_per_gpu": ("batch per gpu", "batch/gpu", "local batch", "batch", "batch size"),
    "global_batch": ("global batch", "global batch size", "total batch"),
    "nodes": ("nodes", "n nodes", "number of nodes", "# nodes", "#nodes"),
    "runs": ("runs", "n runs", "number of runs", "repetitions"),
    "note": ("note", "notes", "comment", "remark"),
    "derived": (
        *("speedup", "speed-up", "s(n)", "efficiency", "e(n)", "parallel efficiency"),
        *("scaling efficiency", "ideal"),
    ),
}
"""By meaning, how a header may be written; case, underscores and the unit behind it do not
matter."""
_MEANINGS = {name: meaning for meaning, names in HEADERS.items() for name in names}
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_UNIT = re.compile(r"(.+?)\s*(?:[(\[]\s*(?:in )?([^()\[\]]+?)\s*[)\]]|(?<=[ ])(\w+))")
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_WHOLE = re.compile(r"\d{1,15}")
_PLAIN = re.compile(_NUMBER)
_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d*)?)")
_WITH_UNITS = re.compile(rf"(?:(?:{_NUMBER})\s*[a-z]+\s*)+")
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_LONGEST_HEADER = 80
_SEVERAL = re.compile(r";\s*|,\s+")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_BAR = re.compile(r"(?<!\\)\|")


class TableDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values of every row whose own cell does not say them; None where nothing does."""

    case: str | None = None
    strategy: str | None = None
    batch_per_gpu: int | None = None
    nodes: int | None = None
    timed: Timed | None = None
    """The span of the times; a table says it nowhere itself."""
    discard_first: int = 0
    """The number of first times of each row that the source leaves out."""


class _Row(NamedTuple):
    line: int
    """Of the text, from 1."""
    cells: tuple[str, ...]
    """Without spaces and emphasis around them; empty where nothing stands."""


class Column(NamedTuple):
    """One column of a table, under a header that is known."""

    header: str
    """As it is written."""
    meaning: str
    seconds: float = 1.0
    """Those of one unit of a time."""


def figures_from_table(
    text: str, defaults: TableDefaults, hardware: Hardware
) -> tuple[tuple[PublishedFigure, ...], tuple[str, ...]]:
    """The figures of the one table that has a column of GPUs, and the headers of what follows.

    Tables are those in Markdown, else the text itself as CSV, separated by commas, semicolons or
    tabs, whichever its first line has most of. Rows of the same case, strategy and number of GPUs
    are repetitions of each other if they give times.
    """
    (head, *rows), found = _table_of_gpus(_tables_in(text))
    with _on_line(head.line):
        columns = _checked(head, found, defaults)
    figures: dict[EntryKey, PublishedFigure] = {}
    for row in rows:
        with _on_line(row.line):
            figure = _figure(_values(row, columns), defaults, hardware)
            earlier = figures.get(figure.key)
            figures[figure.key] = figure if earlier is None else _joined(earlier, figure)
    with _on_line(head.line):
        if not figures:
            raise DecodeError("", "the table has no rows")
        complete = tuple(_counted(each, defaults.discard_first) for each in figures.values())
    return complete, tuple(column.header for column in columns if column.meaning == "derived")


@contextmanager
def _on_line(line: int) -> Iterator[None]:
    """Names the line in the errors of what is read from it."""
    try:
        yield
    except DecodeError as error:
        raise DecodeError(error.place, error.problem, line=line) from None


def _tables_in(text: str) -> list[list[_Row]]:
    """The tables of a text, each its headers and the rows below them, with as many cells."""
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        problem = text_problem(line.replace("\t", " "))
        if problem is not None:
            raise DecodeError("", problem, line=number)
    tables = list(_markdown(lines)) or [_csv(lines)]
    for head, *rows in filter(None, tables):
        for row in rows:
            if len(row.cells) != len(head.cells):
                count = f"{len(row.cells)} cells under {len(head.cells)} headers"
                problem = f"{count} (line {head.line}); give each header its cell"
                raise DecodeError("", problem, line=row.line)
    return tables


def _markdown(lines: Sequence[str]) -> Iterator[list[_Row]]:
    for at in range(1, len(lines)):
        head, rule = lines[at - 1], lines[at]
        if "|" not in head or "|" not in rule or _RULE.fullmatch(rule) is None:
            continue
        rows = takewhile(lambda row: "|" in row[1], enumerate(lines[at + 1 :], start=at + 2))
        yield [_Row(number, _markdown_cells(line)) for number, line in ((at, head), *rows)]


def _markdown_cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(cell.replace("\\|", "|").strip(" *`") for cell in _BAR.split(inner))


def _csv(lines: Sequence[str]) -> list[_Row]:
    rows: list[_Row] = []
    delimiter = ""
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        delimiter = delimiter or max((",", ";", "\t"), key=line.count)
        try:
            # A line each: a quoted line break would hide an unclosed quote.
            (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            raise DecodeError("", f"this is no line of a table: {error}", line=number) from None
        rows.append(_Row(number, tuple(cell.strip() for cell in cells)))
    return rows


def _table_of_gpus(tables: Sequence[list[_Row]]) -> tuple[list[_Row], list[Column | None]]:
    """The table with a column of GPUs, and its columns; None for a header that is not known."""
    found = []
    for table in filter(None, tables):
        with _on_line(table[0].line):
            columns = [column_of(header) for header in table[0].cells]
        if any(column is not None and column.meaning == "gpus" for column in columns):
            found.append((table, columns))
    if not found:
        raise DecodeError("", "no table has a column 'gpus' (or 'n'); docs/baselines.md shows one")
    if len(found) > 1:
        lines = ", ".join(str(table[0].line) for table, _ in found)
        problem = f"several tables have a column of GPUs (lines {lines}); keep one of them"
        raise DecodeError("", problem)
    return found[0]


def column_of(header: str) -> Column | None:
    """The column under a header; None where the header is not known."""
    name = re.sub(r"[\s_]+", " ", header.strip().lower())
    if name in _MEANINGS:
        return Column(header, _MEANINGS[name], _SECONDS.get(name, 1.0))
    found = _UNIT.fullmatch(name[:_LONGEST_HEADER])
    meaning = None if found is None else _MEANINGS.get(found[1])
    if found is None or meaning not in ("time", "throughput"):
        return None
    unit = found[2] or found[3]
    if meaning == "time" and unit in _SECONDS:
        return Column(header, meaning, _SECONDS[unit])
    if meaning == "throughput" and _MEANINGS.get(unit) == "throughput":
        return Column(header, meaning)
    known = "s, min, h or ms" if meaning == "time" else "samples/s or images/s"
    raise DecodeError(f"column '{header}'", f"the unit {shown(unit)} is not {known}")


def _checked(head: _Row, found: Sequence[Column | None], defaults: TableDefaults) -> list[Column]:
    columns: dict[str, Column] = {}
    for header, column in zip(head.cells, found, strict=True):
        if column is None:
            problem = "not a column that is known (docs/baselines.md); rename or delete it"
            raise DecodeError(f"column '{header}'", problem)
        other = columns.setdefault(column.meaning, column)
        if other is not column and column.meaning != "derived":
            problem = f"means the same as '{other.header}'; keep one of them"
            raise DecodeError(f"column '{header}'", problem)
    measures = [c.header for c in columns.values() if c.meaning in ("time", "throughput")]
    if len(measures) != 1:
        named = " and ".join(f"'{header}'" for header in measures) or "none"
        problem = f"expected one column of times or of throughput, found {named}"
        raise DecodeError("", f"{problem}; name it 'time (s)' or 'samples/s'")
    if "time" in columns and defaults.timed is None:
        problem = f"the column '{measures[0]}' gives times; say with --timed what they span"
        raise DecodeError("", problem)
    return [column for column in found if column is not None]


def _values(row: _Row, columns: Sequence[Column]) -> dict[str, Any]:
    """The value of each cell that is filled, by the meaning of its column."""
    values = {}
    for column, text in zip(columns, row.cells, strict=True):
        if text and column.meaning != "derived":
            try:
                values[column.meaning] = _value(column, text)
            except DecodeError as error:
                raise DecodeError(f"column '{column.header}'", error.problem) from None
    return values


def _value(column: Column, text: str) -> object:
    """The value of a cell; of times, which may be several, all in seconds."""
    match column.meaning:
        case "note":
            return text
        case "case" | "strategy":
            return converted(Name, text)
        case "time":
            parts = _SEVERAL.split(text)
            times = tuple(_time_s(part.strip().lower(), column.seconds) for part in parts)
            return converted(tuple[Seconds, ...], times)
        case "throughput":
            if _PLAIN.fullmatch(text.lower()) is None:
                raise DecodeError("", f"expected a number such as 1520.5, found {shown(text)}")
            return converted(SamplesPerSecond, float(text))
        case meaning:
            if _WHOLE.fullmatch(text) is None:
                raise DecodeError("", f"expected a whole number, found {shown(text)}")
            return converted(Gpus if meaning in ("gpus", "nodes") else PositiveCount, int(text))


def _time_s(text: str, seconds: float) -> float:
    """The time that `145` (of a unit of so many seconds), `5:42:11.9` or `2 min 25 s` says."""
    if _PLAIN.fullmatch(text):
        return float(text) * seconds
    if clock := _CLOCK.fullmatch(text):
        return float(clock[1] or 0) * 3600 + float(clock[2]) * 60 + float(clock[3])
    if _WITH_UNITS.fullmatch(text):
        parts = _PART.findall(text)
        if all(unit in _SECONDS for _, unit in parts):
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise DecodeError("", f"expected a time such as 145, 2:25 or 2 min 25 s, found {shown(text)}")


def _figure(cells: dict[str, Any], defaults: TableDefaults, hardware: Hardware) -> PublishedFigure:
    gpus = cells.get("gpus")
    if gpus is None:
        raise DecodeError("", "no number of GPUs; fill its cell, or give a number of GPUs there")
    times: tuple[float, ...] = cells.get("time", ())
    if not times and "throughput" not in cells:
        problem = "neither a time nor a throughput; fill its cell, or delete the row"
        raise DecodeError("", problem)
    share, odd = divmod(cells.get("global_batch", 0), gpus)
    if odd:
        problem = f"a global batch of {cells['global_batch']} does not go evenly on {gpus} GPUs"
        raise DecodeError("", f"{problem}; give the batch per GPU")
    said = {name: cells.get(name, getattr(defaults, name)) for name in ("case", "strategy")}
    said["batch_per_gpu"] = cells.get("batch_per_gpu", share or defaults.batch_per_gpu)
    for name, value in said.items():
        if value is None:
            remedy = f"fill its cell, or give --{name.replace('_', '-')}"
            raise DecodeError("", f"no {name.partition('_')[0]}; {remedy}")
    # Several epochs are of one job; several whole jobs or loops are repetitions of it.
    repetitions = 1 if defaults.timed == "epoch" else max(1, len(times))
    return PublishedFigure(
        **said,
        gpus=gpus,
        nodes=_nodes(cells.get("nodes", defaults.nodes), gpus, hardware),
        runs=cells.get("runs", repetitions),
        times_s=times,
        timed=defaults.timed if times else None,
        samples_per_s=cells.get("throughput"),
        note=cells.get("note"),
    )


def _nodes(nodes: int | None, gpus: int, hardware: Hardware) -> int:
    per_node = hardware.gpus_per_node
    if nodes is None:
        return 1 if per_node is None else -(-gpus // per_node)
    if nodes > gpus or (per_node is not None and gpus > nodes * per_node):
        of = "" if per_node is None else f" of {per_node} GPUs"
        counted = f"{nodes} node{'' if nodes == 1 else 's'}{of}"
        raise DecodeError("", f"{gpus} GPUs are not on {counted}; correct one of the numbers")
    return nodes


def _joined(earlier: PublishedFigure, later: PublishedFigure) -> PublishedFigure:
    """Two rows of one figure: repetitions."""
    label = later.key.label
    if not later.times_s or not earlier.times_s:
        problem = f"{label} stands twice; give one row, its mean, and a column 'runs'"
        raise DecodeError("", problem)
    if (earlier.nodes, earlier.batch_per_gpu) != (later.nodes, later.batch_per_gpu):
        problem = f"{label} stood before with another batch or number of nodes"
        raise DecodeError("", f"{problem}; name the cases apart")
    notes = dict.fromkeys(note for note in (earlier.note, later.note) if note)
    return replace(
        earlier,
        times_s=(*earlier.times_s, *later.times_s),
        runs=earlier.runs + later.runs,
        note="; ".join(notes) or None,
    )


def _counted(figure: PublishedFigure, discard_first: int) -> PublishedFigure:
    """The figure without the first times that the source leaves out."""
    count = len(figure.times_s)
    if 0 < count <= discard_first:
        times = f"{count} time{'' if count == 1 else 's'}"
        problem = f"{figure.key.label} has {times}, and --discard-first takes {discard_first}"
        raise DecodeError("", problem)
    return replace(figure, discard_first=discard_first) if count else figure
