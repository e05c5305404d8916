"""`gpuscale baseline import`: make a baseline of published figures or a tool's references."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuscale.base.devices import DEVICES
from gpuscale.base.errors import DecodeError, ExitCode, UsageError
from gpuscale.base.printable import escaped
from gpuscale.base.units import counted
from gpuscale.cli.baseline import add_output, new_baseline, write_new
from gpuscale.cli.import_ import add_recorded, paths_of, sessions_of
from gpuscale.cli.inputs import remark
from gpuscale.records import Baseline, Hardware, Source
from gpuscale.records.environment import UNRECORDED
from gpuscale.records.environment_diff import listed
from gpuscale.records.record import NAME_LIMIT
from gpuscale.records.tolerances import Tolerances
from gpuscale.store.files import file_error, read_with
from gpuscale.store.imports import SOURCES
from gpuscale.store.imports.session import Directions, Session, published
from gpuscale.store.table import TableDefaults, figures_from_table

_R = TypeVar("_R", bound=msgspec.Struct)

_MOST_LINES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a baseline from published figures in a table, which has a column of GPUs ('gpus' "
        "or 'n') and one of times or throughput, as CSV or in Markdown (docs/baselines.md). The "
        "options add what the table lacks. With reframe and its reports in place of a table: of "
        "the references in them, each judged by its own thresholds, since it has no spread."
    )
    add = parser.add_argument
    text = "a .csv or .md file, or reframe and its reports, logs or folders of them"
    add("table", metavar="TABLE", nargs="+", help=text)
    add_output(parser)
    text = "where the figures come from (of ReFrame's references by default its files)"
    add("--source", dest="title", metavar="TEXT", help=text)
    add_recorded(parser)
    add("--url", help="where to read it")
    add("--published", metavar="DATE", help="when it was published")
    add("--note", metavar="TEXT", help="what a reader must know of the figures")
    add("--device", choices=DEVICES, default="cuda", help="default: cuda")
    add("--gpu-name", metavar="NAME", help="the model of the GPUs, such as V100")
    add("--gpus-per-node", metavar="N", type=int, help="GPUs of each node")
    add("--cpu-model", metavar="NAME", help="the model of the CPUs")
    add("--case", help="the case of rows without a case")
    add("--strategy", help="the strategy of rows without one, such as ddp")
    add("--batch-per-gpu", metavar="N", type=int, help="the batch per GPU of rows without one")
    text = "the nodes of rows without them (default: by --gpus-per-node, else 1)"
    add("--nodes", metavar="N", type=int, help=text)
    text = (
        "how to read a column whose header is not known: as part of the row's name, not at all, "
        "or as a known header; may be given several times"
    )
    what = "HEADER=name|skip|KNOWN"
    add("--column", dest="columns", metavar=what, type=_column, action="append", help=text)
    add("--timed", choices=("job", "training_loop", "epoch"), help="what the times span")
    text = "number of first times of each night that the source leaves out (default: 0)"
    add("--discard-first", metavar="N", type=int, default=0, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the baseline file, and print a summary."""
    output, name = new_baseline(arguments)
    of_tool, *others = arguments.table
    if of_tool == "reframe" and others:
        return _import_references(of_tool, others, arguments, output, name)
    if others or arguments.title is None:
        wrong = "takes one table" if others else "needs --source, where its figures come from"
        raise UsageError(f"baseline import: {wrong}; or reframe and its reports")
    arguments.columns = dict(arguments.columns or ())
    try:
        hardware = _asked_for(Hardware, arguments)
    except ValueError as refusal:
        raise UsageError(str(refusal)) from None
    defaults = _asked_for(TableDefaults, arguments)
    path = Path(of_tool)
    table = read_with(path, lambda text: figures_from_table(text, defaults, hardware))
    if table.problems:
        for problem in _merged(table.problems):
            error = file_error(path, problem.problem, place=problem.place, line=problem.line)
            remark(f"{error}")
        return ExitCode.USAGE
    baseline = Baseline(
        name=name,
        cluster=arguments.cluster,
        hardware=hardware,
        published=table.figures,
        source=_asked_for(Source, arguments),
    )
    write_new(output, baseline)
    made = counted(len(table.figures), "published figure")
    sys.stdout.write(f"{output}: {made}\n")
    sys.stdout.writelines(f"note: left out {escaped(name)}\n" for name in table.left_out)
    return ExitCode.OK


def _import_references(
    tool: str, files: Sequence[str], arguments: argparse.Namespace, output: Path, name: str
) -> int:
    """Write a baseline of the references in a tool's reports; the newest of each row counts."""
    arguments.title = arguments.title or f"references of {tool}: {listed(files, 3)}"[:NAME_LIMIT]
    source, sessions = SOURCES[tool], list[Session]()
    for path in paths_of(files, source):
        sessions += sessions_of(path, source)
    sessions = [each for each in sessions if arguments.system in (None, each.system)]
    systems = sorted({session.system for session in sessions if session.system})
    if len(systems) > 1:
        raise UsageError(f"these are of {', '.join(systems)}; choose one with --system")
    sessions.sort(key=lambda session: session.began_at)
    values = [value for each in sessions for value in each.values if value.reference]
    if not values:
        raise UsageError(f"{listed(files, 3)}: no value has a reference")
    directions = Directions({name: way == "more" for name, way in arguments.better or ()})
    directions.learn(values)
    found = [published(value, directions.metric_of(value)) for value in values]
    figures = {figure.key: (figure, limit) for figure, limit in found}
    limits = tuple(limit for _, limit in figures.values() if limit is not None)
    baseline = Baseline(
        name=name,
        cluster=arguments.cluster,
        hardware=Hardware(device=UNRECORDED, system=next(iter(systems), None)),
        published=tuple(figure for figure, _ in figures.values()),
        tolerances=Tolerances(overrides=limits),
        source=_asked_for(Source, arguments),
    )
    write_new(output, baseline)
    sys.stdout.write(
        f"{output}: {counted(len(figures), 'reference')}, {len(limits)} with a threshold to the "
        "worse, by which it is judged, since nothing tells how much runs differ\n"
    )
    return ExitCode.OK


def _column(text: str) -> tuple[str, str]:
    header, _, meaning = (part.strip() for part in text.rpartition("="))
    if not header or not meaning:
        raise UsageError(f"--column: '{text}' is not like Framework=name or Framework=skip")
    return header, meaning


def _merged(problems: Sequence[DecodeError]) -> Iterator[DecodeError]:
    """Yield each problem once; the text of a repeated problem lists the other lines."""
    lines: dict[tuple[str, str], list[int]] = defaultdict(list)
    for problem in problems:
        lines[problem.place, problem.problem].append(problem.line or 1)
    for (place, text), (first, *others) in lines.items():
        also = listed([*map(str, others)], _MOST_LINES)
        word = "line" if len(others) == 1 else "lines"
        yield DecodeError(place, f"{text} ({word} {also} too)" if others else text, line=first)


def _asked_for(record: type[_R], arguments: argparse.Namespace) -> _R:
    """Build a record from the command-line options with the same names as the record's fields."""
    given = vars(arguments)
    return record(**{name: given[name] for name in record.__struct_fields__ if name in given})
