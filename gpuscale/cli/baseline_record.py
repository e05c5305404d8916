"""`gpuscale baseline record`: measured results become the reference."""

import argparse
import sys
from pathlib import Path

from gpuscale.cli.identity import login_name
from gpuscale.cli.inputs import gpu_counts, read_all_results
from gpuscale.errors import ExitCode, FileError
from gpuscale.recording import baseline_from_results, measured_at
from gpuscale.store import write_baseline
from gpuscale.validity import last_valid_day


def run_baseline_record(arguments: argparse.Namespace) -> int:
    """Write the baseline file and say what is in it."""
    output = Path(arguments.output)
    refuse_existing(output)
    results = read_all_results([Path(text) for text in arguments.results])
    baseline = baseline_from_results(
        results,
        name=output.stem if arguments.name is None else arguments.name,
        cluster=arguments.cluster,
        cases=arguments.case,
        gpus=None if arguments.gpus is None else gpu_counts(arguments.gpus),
        recorded_by=login_name(),
        expires_on=last_valid_day(
            arguments.expires, arguments.expires_after, measured_at=measured_at(results)
        ),
    )
    write_baseline(output, baseline)
    runs = sum(len(entry.runs) for entry in baseline.measured)
    until = "" if baseline.expires_on is None else f", valid until {baseline.expires_on}"
    sys.stdout.write(f"{output}: {len(baseline.measured)} entries from {runs} runs{until}\n")
    return ExitCode.OK


def refuse_existing(output: Path) -> None:
    """Checks that a baseline is written to a new file.

    Raises:
        FileError: there is one of that name.
    """
    if output.exists():
        raise FileError(output, "exists already; choose another name, or delete it")
