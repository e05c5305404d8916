"""`gpuscale compare`: results against a baseline."""

import argparse
import sys
from pathlib import Path

from gpuscale.cli.inputs import read_all_results
from gpuscale.compare import compare
from gpuscale.errors import UsageError
from gpuscale.report.colour import Palette, wants_colour
from gpuscale.store import RESULTS_FOLDER, newest_results, read_baseline


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare and print; the exit code is the verdict's."""
    gpus = None if arguments.gpus is None else _gpus(arguments.gpus)
    baseline = read_baseline(Path(arguments.baseline))
    paths = [Path(text) for text in arguments.results] or [newest_results(RESULTS_FOLDER)]
    results = read_all_results(paths)
    comparison = compare(baseline, results, cases=arguments.case, gpus=gpus)
    injections = tuple(dict.fromkeys(text for result in results for text in result.injections))
    if arguments.format == "json":
        from gpuscale.report.comparison_json import comparison_json

        text = comparison_json(comparison, injections)
    else:
        from gpuscale.report.comparison_text import comparison_text

        palette = Palette(colour=wants_colour(sys.stdout))
        text = comparison_text(comparison, palette, injections)
    sys.stdout.write(f"{text}\n")
    return comparison.exit_code


def _gpus(text: str) -> frozenset[int]:
    try:
        counts = frozenset(int(part) for part in text.split(","))
    except ValueError:
        counts = frozenset()
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus: '{text}' is not a list of numbers above 0, such as 1,2,4")
    return counts
