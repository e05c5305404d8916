"""`gpuscale baseline record`: measured results become the reference."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuscale.cli.identity import login_name
from gpuscale.cli.inputs import gpu_counts, read_all_results
from gpuscale.compare import compare
from gpuscale.errors import ExitCode, FileError
from gpuscale.recording import baseline_from_results, entries_of, measured_at, results_of
from gpuscale.records import Baseline
from gpuscale.report.entry_text import step_time_text
from gpuscale.store import write_baseline
from gpuscale.units import whole_percent
from gpuscale.validity import last_valid_day

_WEAK = 0.1
"""A smallest loss to be found from which a baseline is of little use."""


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
    entries = entries_of(baseline.runs)
    until = "" if baseline.expires_on is None else f", valid until {baseline.expires_on}"
    sys.stdout.write(f"{output}: {len(entries)} entries from {len(baseline.runs)} runs{until}\n")
    weak = ", ".join(_weak_entries(baseline))
    if weak:
        sys.stderr.write(
            f"gpuscale: warning: against this baseline only large losses can be found: {weak}; "
            "runs that differ that much blur the other rows too, so measure those with wide "
            "intervals again, longer (--run-seconds) or while nothing else runs\n"
        )
    return ExitCode.OK


def _weak_entries(baseline: Baseline) -> Iterator[str]:
    """The entries against which as many runs as they have would find a large loss only."""
    times = {tuple(e): step_time_text(runs) for e, runs in entries_of(baseline.runs).items()}
    for entry in compare(baseline, results_of(baseline)).entries:
        loss = entry.minimum_detectable_loss
        if entry.configuration is not None and (loss is None or loss > _WEAK):
            found = "none" if loss is None else f"from {whole_percent(loss)}"
            time = times[entry.configuration, entry.key.gpus]
            yield f"{entry.key.label} {found} (step time {time})"


def refuse_existing(output: Path) -> None:
    """Checks that a baseline is written to a new file.

    Raises:
        FileError: there is one of that name.
    """
    if output.exists():
        raise FileError(output, "exists already; choose another name, or delete it")
