"""`gpuscale baseline show`: what a baseline holds, and where it comes from."""

import argparse
import sys
from datetime import date
from pathlib import Path

from gpuscale.errors import ExitCode
from gpuscale.report.baseline_text import baseline_text
from gpuscale.report.wrapping import columns_of
from gpuscale.store import read_baseline


def run_baseline_show(arguments: argparse.Namespace) -> int:
    """Print the baseline."""
    baseline = read_baseline(Path(arguments.file))
    text = baseline_text(baseline, date.today(), columns=columns_of(sys.stdout))
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK
