"""Tables that people keep by hand, as CSV or in Markdown: their cells, each with its line."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpuscale.encoding import converted
from gpuscale.errors import DecodeError
from gpuscale.printable import shown, text_problem
from gpuscale.records.record import SamplesPerSecond, Seconds

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
_DELIMITERS = (",", ";", "\t")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_BAR = re.compile(r"(?<!\\)\|")


class TableRow(NamedTuple):
    """One row, with as many cells as the table has headers."""

    line: int
    """Of the text, from 1."""
    cells: tuple[str, ...]
    """Without spaces and emphasis around them; empty where nothing stands."""


class Table(NamedTuple):
    """One table of a text: its headers, and the rows below them."""

    head: TableRow
    rows: tuple[TableRow, ...]


class Column(NamedTuple):
    """One column of a table, under a header that is known."""

    position: int
    header: str
    """As it is written."""
    meaning: str
    seconds: float = 1.0
    """How many of them one unit of a time is."""


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
            rows.append(TableRow(number, _markdown_cells(line)))
        yield _checked(TableRow(at, _markdown_cells(head)), rows)


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
        rows.append(TableRow(number, tuple(cell.strip() for cell in cells)))
    yield _checked(rows[0], rows[1:])


def _checked(head: TableRow, rows: Sequence[TableRow]) -> Table:
    for row in rows:
        if len(row.cells) != len(head.cells):
            problem = f"{len(row.cells)} cells under {len(head.cells)} headers (line {head.line})"
            raise DecodeError("", f"{problem}; give each header its cell", line=row.line)
    return Table(head, tuple(rows))


def column_of(position: int, header: str) -> Column | None:
    """The column under a header; None where the header is not known."""
    name = re.sub(r"[\s_]+", " ", header.strip().lower())
    if name in _MEANINGS:
        return Column(position, header, _MEANINGS[name], _SECONDS.get(name, 1.0))
    found = _UNIT.fullmatch(name[:_LONGEST_HEADER])
    meaning = None if found is None else _MEANINGS.get(found[1])
    if found is None or meaning is None:
        return None
    unit = found[2] or found[3]
    if meaning == "time" and unit in _SECONDS:
        return Column(position, header, meaning, _SECONDS[unit])
    if meaning == "throughput" and _MEANINGS.get(unit) == "throughput":
        return Column(position, header, meaning)
    if meaning in ("time", "throughput"):
        known = "s, min, h or ms" if meaning == "time" else "samples/s or images/s"
        raise DecodeError(f"column '{header}'", f"the unit {shown(unit)} is not {known}")
    return None


def whole(text: str, bounds: Any) -> int:
    """The whole number in a cell, within the bounds of an annotated type."""
    if _WHOLE.fullmatch(text) is None:
        raise DecodeError("", f"expected a whole number, found {shown(text)}")
    return int(converted(bounds, int(text)))


def rate(text: str) -> float:
    """The throughput in a cell, in samples per second."""
    if _PLAIN.fullmatch(text.lower()) is None:
        raise DecodeError("", f"expected a number such as 1520.5, found {shown(text)}")
    return float(converted(SamplesPerSecond, float(text)))


def times_s(text: str, seconds: float) -> tuple[float, ...]:
    """The times in a cell, in seconds: one, or repetitions between `;` or `, `.

    Args:
        text: Each as `145`, `2:25`, `5:42:11.9` or `2 min 25 s`.
        seconds: How many one unit of a plain number is.
    """
    found = tuple(_time_s(part.strip().lower(), seconds) for part in _SEVERAL.split(text))
    return converted(tuple[Seconds, ...], found)


def _time_s(text: str, seconds: float) -> float:
    if _PLAIN.fullmatch(text):
        return float(text) * seconds
    if clock := _CLOCK.fullmatch(text):
        return float(clock[1] or 0) * 3600 + float(clock[2]) * 60 + float(clock[3])
    if _WITH_UNITS.fullmatch(text):
        parts = _PART.findall(text)
        if all(unit in _SECONDS for _, unit in parts):
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise DecodeError("", f"expected a time such as 145, 2:25 or 2 min 25 s, found {shown(text)}")
