"""`gpuscale baseline record`: measured results become the reference."""

import argparse
import math
import sys
from pathlib import Path

from msgspec.structs import replace

from gpuscale.cli.baseline import add_expiry, add_output, last_valid_day, login_name, new_baseline
from gpuscale.cli.inputs import add_selection, read_all_results
from gpuscale.compare import compare
from gpuscale.environment_diff import listed
from gpuscale.errors import ExitCode
from gpuscale.recording import (
    MINIMUM_RUNS,
    EntryId,
    baseline_from_results,
    entries_of,
    measured_at,
    results_of,
)
from gpuscale.records import Baseline
from gpuscale.records.run import busy_loads
from gpuscale.reports.phrases import load_text
from gpuscale.reports.show.baseline_text import step_time_text
from gpuscale.store import write_baseline
from gpuscale.units import counted, rough_percent

_WEAK = 0.1
"""A minimum detectable loss from which a baseline is of little use."""
_MOST_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Make a baseline of measured results: at least {MINIMUM_RUNS} runs of each entry; six or "
        "more find smaller losses."
    )
    parser.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    add_output(parser)
    add_selection(parser, "take")
    add_expiry(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the baseline file and say what is in it."""
    output, name = new_baseline(arguments)
    results = read_all_results([Path(text) for text in arguments.results])
    expires_on = last_valid_day(arguments, measured_at=measured_at(results))
    baseline = baseline_from_results(
        results,
        name=name,
        cluster=arguments.cluster,
        cases=arguments.case,
        gpus=arguments.gpus,
    )
    baseline = replace(baseline, recorded_by=login_name(), expires_on=expires_on)
    write_baseline(output, baseline)
    entries = entries_of(baseline.runs)
    until = "" if expires_on is None else f", valid until {expires_on}"
    runs = counted(len(baseline.runs), "run")
    sys.stdout.write(f"{output}: {counted(len(entries), 'entry')} from {runs}{until}\n")
    if busy := busy_loads(baseline.runs):
        sys.stderr.write(
            f"gpuscale: warning: the host was busy in {len(busy)} of {len(baseline.runs)} runs "
            f"({load_text(busy[0])}), which blurs what later nights are compared with; measure "
            "them again while nothing else runs\n"
        )
    losses = _detectable_losses(baseline)
    (largest, at_largest, _), (smallest, at_smallest, _) = losses[0], losses[-1]
    span = _size(smallest)
    if _size(largest) != span:
        span += f" ({at_smallest}) to {_size(largest)} ({at_largest})"
    sys.stdout.write(f"the smallest loss that as many runs again would find: {span}\n")
    if weak := [text for loss, _, text in losses if loss > _WEAK]:
        sys.stderr.write(
            "gpuscale: warning: against this baseline only large losses can be found: "
            f"{listed(weak, _MOST_NAMED)}; runs that differ that much blur the other rows too, so "
            "measure those with wide intervals again, longer (--run-seconds) or while nothing else "
            "runs\n"
        )
    return ExitCode.OK


def _detectable_losses(baseline: Baseline) -> list[tuple[float, str, str]]:
    """The smallest loss that as many runs would find of each entry, the largest first.

    Beside it stand its label and a text for a warning; infinite is none at all.
    """
    runs = entries_of(baseline.runs)
    found = []
    for entry in compare(baseline, results_of(baseline)).entries:
        if entry.configuration is not None:
            loss = entry.minimum_detectable_loss
            loss, named = (math.inf, "none") if loss is None else (loss, f"from {_size(loss)}")
            time = step_time_text(runs[EntryId(entry.configuration, entry.key.gpus)])
            label = entry.key.label
            found.append((loss, label, f"{label} {named} (step time {time})"))
    return sorted(found, key=lambda each: -each[0])


def _size(loss: float) -> str:
    return "none" if math.isinf(loss) else rough_percent(loss)
