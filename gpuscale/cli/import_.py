"""`gpuscale import`: convert results that other tools recorded into nightly runs."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.printable import visible
from gpuscale.base.units import counted
from gpuscale.cli.inputs import direction, files_below, is_folder, remark
from gpuscale.records.environment_diff import listed
from gpuscale.reports.phrases import SEVERAL_UNITS
from gpuscale.reports.screen import can_redraw, progress_text, redrawn
from gpuscale.store.files import read_with
from gpuscale.store.imports import SOURCES, Source
from gpuscale.store.imports.folder import ImportFolder
from gpuscale.store.imports.session import Session

_MOST_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sources = "; ".join(f"{name}: {source.words}" for name, source in SOURCES.items())
    parser.description = (
        "Make nights of what other tools have recorded, which compare --history, history and "
        f"report then read. {sources}. Files that were imported before are passed over."
    )
    parser.add_argument("source", metavar="SOURCE", choices=SOURCES, help=", ".join(SOURCES))
    parser.add_argument("files", metavar="FILE|DIR", nargs="+", help="files, or folders of them")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder of the nights")
    add_recorded(parser)


def add_recorded(parser: argparse.ArgumentParser) -> None:
    """Add the options that supply what a tool's records lack."""
    text = "the system (and partition) to import, if the files are of several"
    parser.add_argument("--system", metavar="NAME", help=text)
    text = "which way of a metric is better, if nothing else says so; may be given several times"
    what = "METRIC=more|less"
    parser.add_argument("--better", metavar=what, type=direction, action="append", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Import the files, and print how many nights and values were new."""
    source, place = SOURCES[arguments.source], visible(arguments.output)
    paths = paths_of(arguments.files, source)
    found = _Found()
    better = {name: way == "more" for name, way in arguments.better or ()}
    with ImportFolder(Path(arguments.output), better) as folder:
        new = [path for path in paths if not folder.has(path)]
        stream = sys.stderr if can_redraw(sys.stderr) else None
        with redrawn(stream, lambda: progress_text("file", found.files, len(new))):
            for path in new:
                _import(path, source, folder, found, arguments.system)
    if new and found.unread == len(new):
        raise UsageError("none of the files could be read; see above")
    known = f"; {counted(len(paths) - len(new), 'file')} known before" if paths != new else ""
    sys.stdout.write(
        f"{place}: {counted(found.nights, 'new night')} with {counted(found.values, 'value')}, "
        f"from {counted(len(new) - found.unread, 'file')}{known}\n"
    )
    if found.without:
        named = listed([f"{name}: {n} ×" for name, n in found.without.most_common()], _MOST_NAMED)
        sys.stdout.write(f"without a value: {named}\n")
    if several := [f"{name} ({', '.join(units)})" for name, units in folder.several_units.items()]:
        sys.stdout.write(f"{SEVERAL_UNITS}: {listed(several, _MOST_NAMED)}\n")
    if found.nights:
        sys.stdout.write(f"next: gpuscale history {place}, or gpuscale compare --history {place}\n")
    return ExitCode.OK


@dataclass(slots=True)
class _Found:
    files: int = 0
    unread: int = 0
    nights: int = 0
    values: int = 0
    without: Counter[str] = field(default_factory=Counter)


def _import(
    path: Path, source: Source, folder: ImportFolder, found: _Found, system: str | None
) -> None:
    """Import one file; if it cannot be read, print its name and the problem."""
    found.files += 1
    try:
        sessions = sessions_of(path, source)
    except FileError as error:
        found.unread += 1
        remark(f"left out: {error}")
        return
    for session in sessions:
        if system is not None and session.system != system:
            continue
        found.without.update(session.without_value)
        if session.values and folder.add(session):
            found.nights += 1
            found.values += len(session.values)
    folder.remember(path)


def paths_of(given: Sequence[str], source: Source) -> list[Path]:
    """Return the given files, and a source's files in given folders; FileError if none exist."""
    paths = [path for text in given for path in _files(Path(text), source)]
    if not paths:
        named = " or ".join(source.endings)
        raise FileError(given[0], f"has no files that end in {named}")
    return paths


def sessions_of(path: Path, source: Source) -> list[Session]:
    """Return the sessions in a file that one of the sources wrote."""
    return read_with(path, lambda text: [*source.sessions(path, text)])


def _files(path: Path, source: Source) -> Iterator[Path]:
    if not is_folder(path):
        yield path
        return
    yield from sorted(files_below(path, lambda name: name.endswith(source.endings)))
