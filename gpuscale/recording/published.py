"""Published figures from a table that people keep by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from gpuscale.encoding import converted
from gpuscale.errors import DecodeError
from gpuscale.recording.columns import Column, Meaning, column_of, rate, times_s, whole
from gpuscale.recording.hand_kept_table import Table, TableRow
from gpuscale.records import EntryKey, Hardware, PublishedFigure
from gpuscale.records.baseline import Timed
from gpuscale.records.record import Gpus, Name, PositiveCount

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefaults:
    """What holds for every row whose own cell does not say it; None where nothing does."""

    case: str | None = None
    strategy: str | None = None
    batch_per_gpu: int | None = None
    nodes: int | None = None
    timed: Timed | None = None
    """What times span; a table says it nowhere itself."""
    discard_first: int = 0
    """How many of the first times of each row the source leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """What a table gave."""

    figures: tuple[PublishedFigure, ...]
    left_out: tuple[str, ...]
    """Headers of columns that follow from the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    row: TableRow
    columns: Mapping[Meaning, Column]

    def cell(self, meaning: Meaning, read: Callable[[str], _T], default: _T) -> _T:
        column = self.columns.get(meaning)
        text = "" if column is None else self.row.cells[column.position]
        if column is None or not text:
            return default
        try:
            return read(text)
        except DecodeError as error:
            raise self.problem(error.problem, place=f"column '{column.header}'") from None

    def needed(self, value: _T | None, what: str, option: str) -> _T:
        if value is None:
            raise self.problem(f"no {what}; fill its cell, or give {option}")
        return value

    def problem(self, text: str, *, place: str = "") -> DecodeError:
        return DecodeError(place, text, line=self.row.line)


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
    columns = _columns(table)
    _check_measure(table, columns, defaults)
    figures: dict[EntryKey, PublishedFigure] = {}
    for row in table.rows:
        read = _Row(row=row, columns=columns)
        figure = _figure(read, defaults, hardware)
        earlier = figures.get(figure.key)
        figures[figure.key] = figure if earlier is None else _joined(earlier, figure, read)
    if not figures:
        raise DecodeError("", "the table has no rows", line=table.line)
    return TableFigures(
        figures=tuple(
            _complete(figure, defaults, table.line) if figure.times_s else figure
            for figure in figures.values()
        ),
        left_out=tuple(
            header
            for header, column in zip(table.headers, _known(table), strict=True)
            if column is not None and column.meaning == "derived"
        ),
    )


def _table_of_gpus(tables: Sequence[Table]) -> Table:
    found = [t for t in tables if any(c is not None and c.meaning == "gpus" for c in _known(t))]
    if not found:
        raise DecodeError("", "no table has a column 'gpus' (or 'n'); docs/baselines.md shows one")
    if len(found) > 1:
        lines = ", ".join(str(table.line) for table in found)
        problem = f"several tables have a column of GPUs (lines {lines}); keep one of them"
        raise DecodeError("", problem)
    return found[0]


def _columns(table: Table) -> dict[Meaning, Column]:
    columns: dict[Meaning, Column] = {}
    for header, column in zip(table.headers, _known(table), strict=True):
        place = f"column '{header}'"
        if column is None:
            problem = "not a column that is known (docs/baselines.md); rename or delete it"
            raise DecodeError(place, problem, line=table.line)
        if column.meaning in columns and column.meaning != "derived":
            problem = f"means the same as '{columns[column.meaning].header}'; keep one of them"
            raise DecodeError(place, problem, line=table.line)
        columns[column.meaning] = column
    return columns


def _known(table: Table) -> list[Column | None]:
    try:
        return [column_of(position, header) for position, header in enumerate(table.headers)]
    except DecodeError as error:
        raise DecodeError(error.place, error.problem, line=table.line) from None


def _check_measure(
    table: Table, columns: Mapping[Meaning, Column], defaults: TableDefaults
) -> None:
    measures = [c for c in columns.values() if c.meaning in ("time", "throughput")]
    if len(measures) != 1:
        found = " and ".join(f"'{column.header}'" for column in measures) or "none"
        problem = f"expected one column of times or of throughput, found {found}"
        raise DecodeError("", f"{problem}; name it 'time (s)' or 'samples/s'", line=table.line)
    if measures[0].meaning == "time" and defaults.timed is None:
        problem = f"the column '{measures[0].header}' gives times"
        raise DecodeError("", f"{problem}; say with --timed what they span", line=table.line)


def _figure(read: _Row, defaults: TableDefaults, hardware: Hardware) -> PublishedFigure:
    gpus = read.needed(read.cell("gpus", _gpus, None), "number of GPUs", "a number of GPUs there")
    time = read.columns.get("time")
    unit_s = 1.0 if time is None else time.seconds
    times: tuple[float, ...] = read.cell("time", lambda text: times_s(text, unit_s), ())
    throughput = read.cell("throughput", rate, None)
    if not times and throughput is None:
        raise read.problem("neither a time nor a throughput; fill its cell, or delete the row")
    share = _share(read, read.cell("global_batch", _batch, None), gpus)
    per_gpu = read.cell("batch_per_gpu", _batch, share)
    return PublishedFigure(
        case=read.needed(read.cell("case", _name, defaults.case), "case", "--case"),
        strategy=read.needed(
            read.cell("strategy", _name, defaults.strategy), "strategy", "--strategy"
        ),
        gpus=gpus,
        nodes=_nodes(read, read.cell("nodes", _gpus, defaults.nodes), gpus, hardware),
        batch_per_gpu=read.needed(
            defaults.batch_per_gpu if per_gpu is None else per_gpu, "batch", "--batch-per-gpu"
        ),
        runs=read.cell("runs", _count, _repetitions(times, defaults)),
        times_s=times,
        timed=defaults.timed if times else None,
        samples_per_s=throughput,
        note=read.cell("note", str, None),
    )


def _repetitions(times: Sequence[float], defaults: TableDefaults) -> int:
    # Several epochs are of one job; several whole jobs or loops are repetitions of it.
    return 1 if defaults.timed == "epoch" else max(1, len(times))


def _share(read: _Row, global_batch: int | None, gpus: int) -> int | None:
    if global_batch is None:
        return None
    if global_batch % gpus:
        problem = f"a global batch of {global_batch} does not go evenly on {gpus} GPUs"
        raise read.problem(f"{problem}; give the batch per GPU")
    return global_batch // gpus


def _nodes(read: _Row, nodes: int | None, gpus: int, hardware: Hardware) -> int:
    per_node = hardware.gpus_per_node
    if nodes is None:
        return 1 if per_node is None else -(-gpus // per_node)
    if nodes > gpus or (per_node is not None and gpus > nodes * per_node):
        of = "" if per_node is None else f" of {per_node} GPUs"
        counted = f"{nodes} node{'' if nodes == 1 else 's'}{of}"
        raise read.problem(f"{gpus} GPUs are not on {counted}; correct one of the numbers")
    return nodes


def _joined(earlier: PublishedFigure, later: PublishedFigure, read: _Row) -> PublishedFigure:
    """Two rows of one figure: repetitions."""
    label = later.key.label
    if not later.times_s or not earlier.times_s:
        raise read.problem(f"{label} stands twice; give one row, its mean, and a column 'runs'")
    if (earlier.nodes, earlier.batch_per_gpu) != (later.nodes, later.batch_per_gpu):
        problem = f"{label} stood before with another batch or number of nodes"
        raise read.problem(f"{problem}; name the cases apart")
    notes = dict.fromkeys(note for note in (earlier.note, later.note) if note)
    return replace(
        earlier,
        times_s=(*earlier.times_s, *later.times_s),
        runs=earlier.runs + later.runs,
        note="; ".join(notes) or None,
    )


def _complete(figure: PublishedFigure, defaults: TableDefaults, line: int) -> PublishedFigure:
    """The figure without the first times that the source leaves out."""
    if defaults.discard_first >= len(figure.times_s):
        times = f"{len(figure.times_s)} time{'' if len(figure.times_s) == 1 else 's'}"
        problem = f"{figure.key.label} has {times}, and --discard-first takes"
        raise DecodeError("", f"{problem} {defaults.discard_first}", line=line)
    return replace(figure, discard_first=defaults.discard_first)


def _gpus(text: str) -> int:
    return whole(text, Gpus)


def _batch(text: str) -> int:
    return whole(text, PositiveCount)


def _count(text: str) -> int:
    return whole(text, PositiveCount)


def _name(text: str) -> str:
    return converted(Name, text)
