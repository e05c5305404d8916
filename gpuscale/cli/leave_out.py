"""`gpuscale leave-out`: exclude a bad nightly run from comparisons, or include it again."""

import argparse
from pathlib import Path

from gpuscale.base.errors import ExitCode, GpuscaleError, UsageError
from gpuscale.base.text import clean, visible
from gpuscale.cli.inputs import remark, results_path, say
from gpuscale.reports.page import has_index, write_index
from gpuscale.store.results import leave_out, read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Leave nights out of history, compare --history, report, plot and baselines, which then "
        "name these nights and the reason. The reason is written into the header of the results "
        "file; the runs stay as they are."
    )
    text = "results files, or folders of one night each"
    parser.add_argument("nights", metavar="NIGHT", type=results_path, nargs="+", help=text)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--because", metavar="TEXT", help="why, such as 'cooling failure'")
    choice.add_argument("--undo", action="store_true", help="let them count again")


def run(arguments: argparse.Namespace) -> int:
    """Exclude or include all given nightly runs; if one of them cannot be read, change none."""
    reason = None if arguments.undo else clean(arguments.because).strip()
    if reason == "":
        raise UsageError("--because: say why, such as 'cooling failure'")
    files: list[Path] = arguments.nights
    before = [read_results(path).left_out is None for path in files]
    for path, has_counted in zip(files, before, strict=True):
        leave_out(path, reason)
        undone = f"counts {'as before' if has_counted else 'again'}"
        say(f"{visible(str(path))}: {undone if reason is None else f'left out: {reason}'}")
    for folder in dict.fromkeys(path.absolute().parent.parent for path in files):
        if has_index(folder):
            try:
                write_index(folder)
            except (GpuscaleError, OSError) as problem:
                remark(f"the index of the nights was not renewed: {problem}")
    return ExitCode.OK
