"""`gpuscale show`: any results or baseline file as a table."""

import argparse
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from gpuscale.errors import ExitCode, UsageError
from gpuscale.records import Results
from gpuscale.reports.screen import columns_of
from gpuscale.reports.tables import baseline_text, results_text
from gpuscale.store import RESULTS_FOLDER, newest_results, read_any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = "Print a results or baseline file as a table."
    text = "results or baseline file (default: the newest in .gpuscale/results)"
    parser.add_argument("file", metavar="FILE", nargs="?", help=text)
    text = "where the time of a step goes, phase by phase, instead of the scaling table"
    parser.add_argument("--phases", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the file."""
    path = newest_results(RESULTS_FOLDER) if arguments.file is None else Path(arguments.file)
    content, columns = read_any(path), columns_of(sys.stdout)
    if isinstance(content, Results):
        phases, now = arguments.phases, datetime.now(UTC)
        text = results_text(content, phases=phases, path=path, now=now, columns=columns)
    elif arguments.phases:
        raise UsageError(f"{path}: a baseline has no phases; give --phases a results file")
    else:
        text = baseline_text(content, date.today(), columns=columns)
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK
