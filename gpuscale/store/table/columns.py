"""Recognise the meanings of a table's columns from headers as people write them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpuscale.base.errors import DecodeError
from gpuscale.base.printable import shown
from gpuscale.records.record import Gpus, PositiveCount
from gpuscale.store.table.reading import Problems, TableRow

HEADERS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("gpus", "gpu", "n", "#gpus", "ngpus", "gpu count", "devices", "ranks", "world size"),
    "throughput": ("throughput", "total throughput", "samples/s", "images/s", "img/s"),
    "throughput_per_gpu": ("throughput/gpu", "samples/s/gpu", "images/s/gpu", "img/s/gpu"),
    "step_time": ("step time", "time/step", "iteration time", "time/iteration", "ms/step", "s/it"),
    "step_rate": ("it/s", "steps/s", "iterations/s"),
    "epoch_time": ("epoch time", "time/epoch", "s/epoch"),
    "time": (
        *("time", "t", "t(n)", "wall clock", "wall time", "walltime", "runtime", "run time"),
        *("elapsed", "duration", "training time", "seconds", "minutes", "hours"),
    ),
    "case": ("case", "model", "workload", "benchmark", "network"),
    "strategy": ("strategy",),
    "batch_per_gpu": (
        *("batch/gpu", "batch size/gpu", "local batch", "local batch size", "per gpu batch"),
        *("batch", "batch size", "bs"),
    ),
    "global_batch": ("global batch", "global batch size", "total batch", "total batch size", "gbs"),
    "nodes": ("nodes", "#nodes", "nnodes"),
    "runs": ("runs", "#runs", "repetitions"),
    "date": ("date", "day", "night", "measured", "measured on"),
    "cluster": ("cluster", "machine", "system", "site"),
    "note": ("note", "notes", "comment", "comments", "remark", "remarks"),
    "derived": (
        *("speedup", "speed up", "s(n)", "efficiency", "eff", "e(n)", "parallel efficiency"),
        *("scaling", "scaling efficiency", "ideal", "ideal speedup"),
    ),
}
"""Known headers by meaning. Case, underscores, hyphens and a unit at the end do not matter; `per`
is the same as `/`, and `number of`, `num`, `no.`, `n` and `# ` are the same as `#`."""
_MEANINGS = {name: meaning for meaning, names in HEADERS.items() for name in names}
MEASURES = ("throughput", "throughput_per_gpu", "step_time", "step_rate", "epoch_time", "time")
"""Columns with measurements, best first: throughputs come first, since they exclude start-up."""
TIMES = ("step_time", "epoch_time", "time")
COUNTS = {
    **dict.fromkeys(("gpus", "nodes"), Gpus),
    **dict.fromkeys(("batch_per_gpu", "global_batch", "runs"), PositiveCount),
}
"""Columns of whole numbers, each with a type that limits the values."""
NAMES = ("case", "strategy", "name")
"""Columns that form the name of a row; `name` stands for further columns that the user chose."""
TEXTS = (*NAMES, "note", "date", "cluster", "skip")
"""Columns whose cells are not numbers."""
SECONDS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_SAMPLES = {"samples", "sample", "images", "image", "imgs", "img", "examples", "example"}
_STEPS = {"steps", "step", "iterations", "iteration", "iters", "iter", "it", "batches", "batch"}
_RATE = re.compile(r"([a-z]+)/([a-z]+)(/gpu|/device|/rank)?")
_UNIT = re.compile(r"(.+?)\s*(?:[(\[]\s*(?:in )?([^()\[\]]+?)\s*[)\]]|(?<=[ ])([\w/]+))")
_COUNT = re.compile(r"(?:#|total|(?:number|num|no|nr|nb|n)\b\.?)(?: of)? ?(gpus|nodes|runs)")
_LONGEST_HEADER = 80


class TableColumn(NamedTuple):
    """A column of a table with a known header."""

    header: str
    """Header as written in the table."""
    meaning: str
    factor: float = 1.0
    """Factor that converts the column's values to seconds, or to a rate per second."""


def parse_header(header: str) -> TableColumn | None:
    """Return the column that a header describes; None if the header is unknown."""
    name = re.sub(r"[\s_,-]+", " ", header[: _LONGEST_HEADER + 1].strip().lower())
    if len(name) > _LONGEST_HEADER:
        return None
    name = re.sub(r"\s*/\s*", "/", re.sub(r"(?<=\w) \(?per (\w+)\)?", r"/\1", name))
    if counted := _COUNT.fullmatch(name):
        name = f"#{counted[1]}"
    if of_unit := parse_unit(name):
        return TableColumn(header, *of_unit)
    if name in _MEANINGS:
        return TableColumn(header, _MEANINGS[name], SECONDS.get(name, 1.0))
    found = _UNIT.fullmatch(name)
    meaning = None if found is None else _MEANINGS.get(found[1])
    if found is None or meaning is None:
        return None
    return _with_unit(header, meaning, found[2] or found[3])


def _with_unit(header: str, meaning: str, unit: str) -> TableColumn | None:
    if meaning == "derived":
        return TableColumn(header, meaning)
    if meaning not in MEASURES:
        return None
    of_unit = parse_unit(unit)
    if meaning in TIMES and unit in SECONDS:
        return TableColumn(header, meaning, SECONDS[unit])
    if of_unit and (of_unit[0] == meaning or (of_unit[0] in TIMES) == (meaning == "time")):
        per_gpu = meaning == "throughput_per_gpu"
        return TableColumn(header, meaning if per_gpu else of_unit[0], of_unit[1])
    known = "s, min, h or ms" if meaning in TIMES else "samples/s or images/s"
    raise DecodeError("", f"the unit {shown(unit)} is not {known}; leave it out: {_skip(header)}")


def parse_unit(unit: str) -> tuple[str, float] | None:
    """Return the meaning and factor of a unit such as `img/s` or `s/epoch`; None if unknown."""
    found = _RATE.fullmatch(unit)
    if found is None:
        return None
    one, other, each = found.groups()
    if one in _SAMPLES and other in SECONDS:
        return "throughput_per_gpu" if each else "throughput", 1 / SECONDS[other]
    if each:
        return None
    if one in _STEPS and other in SECONDS:
        return "step_rate", 1 / SECONDS[other]
    if one in SECONDS and other in _STEPS:
        return "step_time", SECONDS[one]
    return ("epoch_time", SECONDS[one]) if one in SECONDS and other == "epoch" else None


def columns_of(
    head: TableRow, problems: Problems, asked: Mapping[str, str] = MappingProxyType({})
) -> list[TableColumn | None]:
    """Return a column for each cell of the header row; an invalid header gives None and a problem.

    `asked` gives the meaning of some headers: `name`, `skip`, or a known header.
    """
    columns: list[TableColumn | None] = []
    first: dict[str, TableColumn] = {}
    wanted = {header.casefold(): meaning for header, meaning in asked.items()}
    for header in head.cells:
        column = None
        with problems.on(head.line, place=f"column '{header}'"):
            column = _column_asked_for(header, wanted.pop(header.casefold(), None))
            other = first.setdefault(column.meaning, column)
            if other is not column and column.meaning not in ("derived", "name", "skip"):
                problem = f"means the same as '{other.header}'; leave one out: {_skip(header)}"
                column = None
                raise DecodeError("", problem)
        columns.append(column)
    for header in (name for name in asked if name.casefold() in wanted):
        there = ", ".join(f"'{cell}'" for cell in head.cells)
        problems.add(head.line, f"--column: no column is '{header}'; there are {there}")
    return columns


def _column_asked_for(header: str, meaning: str | None) -> TableColumn:
    if meaning in ("name", "skip"):
        return TableColumn(header, meaning)
    column = parse_header(meaning or header)
    if column is not None:
        return column._replace(header=header)
    if meaning is not None:
        problem = f"--column: '{meaning}' is neither name, nor skip, nor a known header"
        raise DecodeError("", f"{problem} (docs/baselines.md)")
    if not header:
        raise DecodeError("", "a column without a header; name the column, or delete it")
    name = shlex.quote(f"{header}=name")
    raise DecodeError(
        "",
        f"not known; make it part of the row's name with --column {name}, or leave it out: "
        f"{_skip(header)}",
    )


def _skip(header: str) -> str:
    return f"--column {shlex.quote(f'{header}=skip')}"


def has_gpus(head: TableRow, asked: Mapping[str, str]) -> bool:
    """True if one of the headers stands for the number of GPUs."""
    columns = columns_of(head, Problems(), asked)
    return any(column and column.meaning == "gpus" for column in columns)


def measure_in(columns: Sequence[TableColumn | None]) -> TableColumn | None:
    """Return the column to take the figures from; None if no column has measurements."""
    by_meaning = {column.meaning: column for column in columns if column is not None}
    found = (by_meaning[meaning] for meaning in MEASURES if meaning in by_meaning)
    return next(found, None)
