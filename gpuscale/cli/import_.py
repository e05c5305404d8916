"""`gpuscale import`: convert results that other tools recorded into nightly runs."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.text import counted, visible
from gpuscale.cli.inputs import direction, files_below, is_folder, remark, say
from gpuscale.records.environment_diff import listed
from gpuscale.reports.screen import can_redraw, progress_text, redrawn
from gpuscale.store.imports.session import Defaults, ImportFolder, Session
from gpuscale.store.imports.sources import SOURCES, ImportedTool, sessions_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sources = "; ".join(f"{name}: {source.words}" for name, source in SOURCES.items())
    parser.description = (
        "Convert records of other tools into nights, which compare --history, history and report "
        f"can read. {sources}. Files that were imported before are skipped."
    )
    parser.add_argument("source", metavar="SOURCE", choices=SOURCES, help=", ".join(SOURCES))
    parser.add_argument("files", metavar="FILE|DIR", nargs="+", help="files, or folders of them")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder of the nights")
    add_recorded(parser)


def add_recorded(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "the system (and partition) to import, if the files are of several"
    add("--system", metavar="NAME", help=text)
    text = "whether more or less of a metric is better, if unknown; may be given several times"
    add("--better", metavar="METRIC=more|less", type=direction, action="append", help=text)
    add("--case", help="for a table: case of the rows that name none")
    add("--strategy", help="for a table: strategy, such as ddp, of the rows that name none")
    text = "for a table: batch per GPU of the rows that name none"
    add("--batch-per-gpu", metavar="N", type=int, help=text)
    add("--gpus-per-node", metavar="N", type=int, help="for a table: number of GPUs of each node")
    text = (
        "for a table: how to read a column whose header is unknown: as part of the row's name, "
        "not at all, or as a known header; may be given several times"
    )
    what = "HEADER=name|skip|KNOWN"
    add("--column", dest="columns", metavar=what, type=_column, action="append", help=text)
    text = "for a table: the part of a job that its times measure"
    add("--timed", choices=("job", "training_loop", "epoch"), help=text)


def defaults_of(arguments: argparse.Namespace, machine: str | None) -> Defaults:
    return Defaults(
        machine=machine,
        columns=dict(arguments.columns or ()),
        case=arguments.case,
        strategy=arguments.strategy,
        batch_per_gpu=arguments.batch_per_gpu,
        gpus_per_node=arguments.gpus_per_node,
        timed=arguments.timed,
    )


def _column(text: str) -> tuple[str, str]:
    header, _, meaning = (part.strip() for part in text.rpartition("="))
    if not header or not meaning:
        raise UsageError(f"--column: '{text}' is not like Framework=name or Framework=skip")
    return header, meaning


def run(arguments: argparse.Namespace) -> int:
    source, place = SOURCES[arguments.source], visible(arguments.output)
    paths, defaults = paths_of(arguments.files, source), defaults_of(arguments, arguments.system)
    without, systems = Counter[str](), set[str]()
    read = nights = values = 0
    more_is_better = {name: way == "more" for name, way in arguments.better or ()}
    with ImportFolder(Path(arguments.output), more_is_better) as folder:
        new = [path for path in paths if not folder.has(path)]
        stream = sys.stderr if can_redraw(sys.stderr) else None
        with redrawn(stream, lambda: progress_text("file", read, len(new))):
            for path, sessions in sessions_in(new, source, defaults, alone=len(paths) == 1):
                read += 1
                systems.update(session.system for session in sessions if session.system)
                wanted = [each for each in sessions if arguments.system in (None, each.system)]
                for session in wanted:
                    without.update(session.without_value)
                    if session.values and folder.add(session, path):
                        nights += 1
                        values += len(session.values)
                if wanted:
                    folder.remember(path)
    if new == paths and not read:
        raise UsageError("none of the files could be read; see above")
    if arguments.system is not None and systems and arguments.system not in systems:
        there = ", ".join(sorted(systems))
        raise UsageError(f"--system: no file is of {arguments.system}; the files are of {there}")
    known = f"; {counted(len(paths) - len(new), 'file')} imported before" if paths != new else ""
    say(
        f"{place}: {counted(nights, 'new night')} with {counted(values, 'value')}, "
        f"from {counted(read, 'file')}{known}"
    )
    if without:
        named = listed([f"{name}: {n} ×" for name, n in without.most_common()], 3)
        say(f"left out: {visible(named)}")
    if nights:
        say(f"next: gpuscale history {place}, or gpuscale compare --history {place}")
    return ExitCode.OK


def sessions_in(
    paths: Sequence[Path], source: ImportedTool, defaults: Defaults, *, alone: bool
) -> Iterator[tuple[Path, list[Session]]]:
    """Yield files with their sessions; if a file is unreadable, skip it or, if `alone`, raise."""
    for path in paths:
        try:
            sessions = sessions_of(path, source, defaults)
        except FileError as error:
            if alone:
                raise
            remark(f"left out: {error}")
        else:
            yield path, sessions


def paths_of(given: Sequence[str], source: ImportedTool) -> list[Path]:
    """Return given files and the tool's files in given folders; raise FileError if none found."""
    paths = list[Path]()
    for path in map(Path, given):
        below = files_below(path, lambda name: name.endswith(source.endings))
        paths += sorted(below) if is_folder(path) else [path]
    if not paths:
        raise FileError(given[0], f"has no files that end in {' or '.join(source.endings)}")
    return paths
