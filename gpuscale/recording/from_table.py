"""Published figures from a table that people keep by hand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuscale.encoding import converted
from gpuscale.errors import DecodeError
from gpuscale.recording.hand_kept_table import (
    Column,
    Table,
    TableRow,
    column_of,
    rate,
    times_s,
    whole,
)
from gpuscale.records import EntryKey, Hardware, PublishedFigure
from gpuscale.records.baseline import Timed
from gpuscale.records.record import Gpus, Name, PositiveCount

_READERS: Mapping[str, Callable[[str], Any]] = {
    "gpus": partial(whole, bounds=Gpus),
    "throughput": rate,
    "case": partial(converted, Name),
    "strategy": partial(converted, Name),
    "batch_per_gpu": partial(whole, bounds=PositiveCount),
    "global_batch": partial(whole, bounds=PositiveCount),
    "nodes": partial(whole, bounds=Gpus),
    "runs": partial(whole, bounds=PositiveCount),
    "note": str,
}
"""What a cell says, by the meaning of its column; a time is read in the column's unit."""


class TableDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values of every row whose own cell does not say them; None where nothing does."""

    case: str | None = None
    strategy: str | None = None
    batch_per_gpu: int | None = None
    nodes: int | None = None
    timed: Timed | None = None
    """What times span; a table says it nowhere itself."""
    discard_first: int = 0
    """How many of the first times of each row the source leaves out."""


class TableFigures(NamedTuple):
    """The figures of a table."""

    figures: tuple[PublishedFigure, ...]
    left_out: tuple[str, ...]
    """Headers of columns that follow from the others."""


def figures_from_table(
    tables: Sequence[Table], defaults: TableDefaults, hardware: Hardware
) -> TableFigures:
    """The figures in the one table that has a column of GPUs.

    Rows of the same case, strategy and number of GPUs are repetitions of each other if they
    give times.

    Raises:
        DecodeError: with line and column; also if no table or several have such a column.
    """
    table = _table_of_gpus(tables)
    with _on_line(table.head.line):
        columns = _columns(table)
        _check_measure(columns, defaults)
    figures: dict[EntryKey, PublishedFigure] = {}
    for row in table.rows:
        with _on_line(row.line):
            figure = _figure(row, columns, defaults, hardware)
            earlier = figures.get(figure.key)
            figures[figure.key] = figure if earlier is None else _joined(earlier, figure)
    with _on_line(table.head.line):
        if not figures:
            raise DecodeError("", "the table has no rows")
        complete = tuple(_complete(figure, defaults) for figure in figures.values())
    derived = tuple(column.header for column in columns if column.meaning == "derived")
    return TableFigures(figures=complete, left_out=derived)


@contextmanager
def _on_line(line: int) -> Iterator[None]:
    """Names the line in the errors of what is read from it."""
    try:
        yield
    except DecodeError as error:
        raise DecodeError(error.place, error.problem, line=line) from None


def _table_of_gpus(tables: Sequence[Table]) -> Table:
    found = [t for t in tables if any(c is not None and c.meaning == "gpus" for c in _known(t))]
    if not found:
        raise DecodeError("", "no table has a column 'gpus' (or 'n'); docs/baselines.md shows one")
    if len(found) > 1:
        lines = ", ".join(str(table.head.line) for table in found)
        problem = f"several tables have a column of GPUs (lines {lines}); keep one of them"
        raise DecodeError("", problem)
    return found[0]


def _columns(table: Table) -> list[Column]:
    columns: dict[str, Column] = {}
    known = []
    for header, column in zip(table.head.cells, _known(table), strict=True):
        if column is None:
            problem = "not a column that is known (docs/baselines.md); rename or delete it"
            raise DecodeError(f"column '{header}'", problem)
        other = columns.setdefault(column.meaning, column)
        if other is not column and column.meaning != "derived":
            problem = f"means the same as '{other.header}'; keep one of them"
            raise DecodeError(f"column '{header}'", problem)
        known.append(column)
    return known


def _known(table: Table) -> list[Column | None]:
    with _on_line(table.head.line):
        return [column_of(position, header) for position, header in enumerate(table.head.cells)]


def _check_measure(columns: Sequence[Column], defaults: TableDefaults) -> None:
    measures = [c for c in columns if c.meaning in ("time", "throughput")]
    if len(measures) != 1:
        found = " and ".join(f"'{column.header}'" for column in measures) or "none"
        problem = f"expected one column of times or of throughput, found {found}"
        raise DecodeError("", f"{problem}; name it 'time (s)' or 'samples/s'")
    if measures[0].meaning == "time" and defaults.timed is None:
        problem = f"the column '{measures[0].header}' gives times; say with --timed what they span"
        raise DecodeError("", problem)


def _figure(
    row: TableRow, columns: Sequence[Column], defaults: TableDefaults, hardware: Hardware
) -> PublishedFigure:
    cells = _cells(row, columns)
    gpus = cells.get("gpus")
    if gpus is None:
        problem = "no number of GPUs; fill its cell, or give a number of GPUs there"
        raise DecodeError("", problem)
    times: tuple[float, ...] = cells.get("time", ())
    if not times and "throughput" not in cells:
        problem = "neither a time nor a throughput; fill its cell, or delete the row"
        raise DecodeError("", problem)
    share = _share(cells.get("global_batch"), gpus)
    said: dict[str, Any] = {
        "case": cells.get("case", defaults.case),
        "strategy": cells.get("strategy", defaults.strategy),
        "batch_per_gpu": cells.get(
            "batch_per_gpu", defaults.batch_per_gpu if share is None else share
        ),
    }
    for name, value in said.items():
        if value is None:
            option = f"--{name.replace('_', '-')}"
            problem = f"no {name.partition('_')[0]}; fill its cell, or give {option}"
            raise DecodeError("", problem)
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


def _cells(row: TableRow, columns: Sequence[Column]) -> dict[str, Any]:
    """The value of each cell that is filled, by the meaning of its column."""
    values = {}
    for column in columns:
        text = row.cells[column.position]
        if not text or column.meaning == "derived":
            continue
        try:
            values[column.meaning] = (
                times_s(text, column.seconds)
                if column.meaning == "time"
                else _READERS[column.meaning](text)
            )
        except DecodeError as error:
            raise DecodeError(f"column '{column.header}'", error.problem) from None
    return values


def _share(global_batch: int | None, gpus: int) -> int | None:
    if global_batch is None:
        return None
    if global_batch % gpus:
        problem = f"a global batch of {global_batch} does not go evenly on {gpus} GPUs"
        raise DecodeError("", f"{problem}; give the batch per GPU")
    return global_batch // gpus


def _nodes(nodes: int | None, gpus: int, hardware: Hardware) -> int:
    per_node = hardware.gpus_per_node
    if nodes is None:
        return 1 if per_node is None else -(-gpus // per_node)
    if nodes > gpus or (per_node is not None and gpus > nodes * per_node):
        of = "" if per_node is None else f" of {per_node} GPUs"
        counted = f"{nodes} node{'' if nodes == 1 else 's'}{of}"
        problem = f"{gpus} GPUs are not on {counted}; correct one of the numbers"
        raise DecodeError("", problem)
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


def _complete(figure: PublishedFigure, defaults: TableDefaults) -> PublishedFigure:
    """The figure without the first times that the source leaves out."""
    if not figure.times_s:
        return figure
    if defaults.discard_first >= len(figure.times_s):
        times = f"{len(figure.times_s)} time{'' if len(figure.times_s) == 1 else 's'}"
        problem = f"{figure.key.label} has {times}, and --discard-first takes"
        raise DecodeError("", f"{problem} {defaults.discard_first}")
    return replace(figure, discard_first=defaults.discard_first)
