"""`gpuscale export`: convert results to the file formats of other tools."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.printable import visible
from gpuscale.cli.inputs import newest_input, read_all_results, read_nights, say_left_out
from gpuscale.records import Results
from gpuscale.reports.exports import EXPORTS
from gpuscale.store import RESULTS_FOLDER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write results as files of other tools (docs/tools.md)."
    exports: Any = parser.add_subparsers(
        dest="export", required=True, metavar="NAME", parser_class=type(parser)
    )
    for name, export in EXPORTS.items():
        added = exports.add_parser(name, help=export.what)
        added.description = f"Write {export.what}."
        metavar = f"FILE{export.ending}" if export.ending else "DIR"
        added.add_argument("target", metavar=metavar, help="what to write")
        text = "results files (default: the newest in .gpuscale/results)"
        if export.of_nights:
            text = f"results files, or folders of them (default: {RESULTS_FOLDER})"
        added.add_argument("paths", metavar="RESULTS", nargs="*", default=(), help=text)
        added.set_defaults(run=__name__)


def run(arguments: argparse.Namespace) -> int:
    """Write the export, and print how to open the export in the other tool."""
    export, target = EXPORTS[arguments.export], Path(arguments.target)
    paths = [Path(text) for text in arguments.paths]
    if export.ending and target.suffix != export.ending:
        # Whoever forgets the target names a results file in its place.
        problem = f"is not a file of this export; first name the target, such as x{export.ending}"
        raise UsageError(f"{visible(str(target))} {problem}")
    if export.of_nights:
        results = read_nights(paths or [RESULTS_FOLDER])
        say_left_out(results)
    else:
        results = read_all_results(paths or [newest_input()])
    write: Callable[[Path, Sequence[Results]], str] = import_module(
        f"gpuscale.reports.exports.{arguments.export}"
    ).write
    sys.stdout.write(f"{write(target, results)}\n")
    return ExitCode.OK
