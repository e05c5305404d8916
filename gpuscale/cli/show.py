"""`gpuscale show`: any results or baseline file as a table."""

import argparse
import sys
from pathlib import Path

from gpuscale.cli.locations import RESULTS_FOLDER
from gpuscale.errors import ExitCode
from gpuscale.records import Results
from gpuscale.store import newest_results, read_any


def run_show(arguments: argparse.Namespace) -> int:
    """Print the file."""
    path = newest_results(RESULTS_FOLDER) if arguments.file is None else Path(arguments.file)
    content = read_any(path)
    if isinstance(content, Results):
        from gpuscale.report.results_text import results_text

        text = results_text(content)
    else:
        from gpuscale.report.baseline_text import baseline_text

        text = baseline_text(content)
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK
