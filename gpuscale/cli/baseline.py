"""`gpuscale baseline record`: measured results become the reference."""

import argparse
import sys
from pathlib import Path

from gpuscale.cli.inputs import read_all_results
from gpuscale.errors import ExitCode, FileError
from gpuscale.recording import baseline_from_results
from gpuscale.store import write_baseline


def run_baseline_record(arguments: argparse.Namespace) -> int:
    """Write the baseline file and say what is in it."""
    output = Path(arguments.output)
    if output.exists():
        raise FileError(output, "exists already; choose another name, or delete it")
    results = read_all_results([Path(text) for text in arguments.results])
    name = output.stem if arguments.name is None else arguments.name
    baseline = baseline_from_results(results, name=name, cluster=arguments.cluster)
    write_baseline(output, baseline)
    runs = sum(len(entry.runs) for entry in baseline.measured)
    sys.stdout.write(f"{output}: {len(baseline.measured)} entries from {runs} runs\n")
    return ExitCode.OK
