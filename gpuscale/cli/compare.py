"""`gpuscale compare`: results against a baseline."""

import argparse
import gc
from datetime import date
from pathlib import Path

from gpuscale.cli.inputs import add_selection, gpu_counts, newest_input, read_all_results
from gpuscale.cli.outputs import outputs_of, spare_inputs, write_outputs
from gpuscale.compare import compare
from gpuscale.compare.notes import with_validity
from gpuscale.diagnose import diagnose
from gpuscale.report import FORMATS
from gpuscale.report.view import view_of
from gpuscale.store import RESULTS_FOLDER, read_baseline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = "Judge results against a baseline."
    parser.epilog = (
        "Exit codes: 0 ok or improved, 1 regressed, 2 usage or unreadable input, "
        "3 not shown to be fine: inconclusive, or a row that only one side has, failed or "
        "cannot be compared, 4 nothing comparable was measured."
    )
    parser.add_argument("baseline", metavar="BASELINE", help="such as baselines/arc4.json")
    parser.add_argument(
        "results",
        metavar="RESULTS",
        nargs="*",
        # Without a default argparse calls them required.
        default=(),
        help="results files of one machine (default: the newest in .gpuscale/results)",
    )
    add_selection(parser, "judge")
    *names, last = FORMATS
    parser.add_argument(
        "--format",
        metavar="FORMAT[=FILE]",
        action="append",
        help=(
            f"{', '.join(names)} or {last}, to standard output or into a file; may be "
            "given several times, such as --format junit=report.xml --format markdown=comment.md "
            "(default: text to standard output, also beside files)"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, and write the verdict in every format asked for; the exit code is the verdict's."""
    # Values by the hundred thousand, none of them in a circle: to look for circles again and again
    # takes a third of a large comparison.
    gc.disable()
    try:
        return _compare(arguments)
    finally:
        gc.enable()


def _compare(arguments: argparse.Namespace) -> int:
    outputs = outputs_of(arguments.format)
    gpus = None if arguments.gpus is None else gpu_counts(arguments.gpus)
    baseline_path = Path(arguments.baseline)
    baseline = read_baseline(baseline_path)
    paths = [Path(text) for text in arguments.results] or [newest_input(RESULTS_FOLDER)]
    spare_inputs(outputs, [baseline_path, *paths])
    results = read_all_results(paths)
    comparison = diagnose(
        baseline, results, compare(baseline, results, cases=arguments.case, gpus=gpus)
    )
    comparison = with_validity(comparison, baseline, results, today=date.today())
    write_outputs(outputs, view_of(comparison, results))
    return comparison.exit_code
