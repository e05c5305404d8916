"""`gpuscale compare`: results against a baseline."""

import argparse
from datetime import date
from pathlib import Path

from gpuscale.cli.inputs import gpu_counts, newest_input, read_all_results
from gpuscale.cli.outputs import outputs_of, spare_inputs, write_outputs
from gpuscale.compare import compare
from gpuscale.diagnose import diagnose
from gpuscale.store import RESULTS_FOLDER, read_baseline
from gpuscale.validity import with_validity


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare, and write the verdict in every format asked for; the exit code is the verdict's."""
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
    write_outputs(outputs, comparison, results)
    return comparison.exit_code
