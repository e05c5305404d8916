"""`gpuscale baseline record`: make a baseline from measured results."""

import argparse
import sys
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode
from gpuscale.base.units import counted, rough_percent
from gpuscale.cli.baseline import (
    MOST_NAMED,
    TOO_WEAK,
    add_expiry,
    add_output,
    last_valid_day,
    login_name,
    new_baseline,
    range_text,
    smallest_losses,
    validate_strength,
    write_new,
)
from gpuscale.cli.inputs import add_selection, read_all_results, remark
from gpuscale.judge.recording import (
    MINIMUM_RUNS,
    baseline_from_results,
    entries_of,
)
from gpuscale.records.environment_diff import listed
from gpuscale.records.run import busy_hosts
from gpuscale.reports.phrases import load_text

_WEAK = 0.1
"""Smallest detectable loss, as a fraction, above which the user is warned about a new baseline."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Make a baseline from measured results: at least {MINIMUM_RUNS} runs of each entry; "
        "six or more find smaller losses."
    )
    parser.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    add_output(parser)
    add_selection(parser, "take")
    text = f"write the baseline even if it finds no loss below {rough_percent(TOO_WEAK)}%"
    parser.add_argument("--weak", action="store_true", help=text)
    add_expiry(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the baseline file, and print a summary."""
    output, name = new_baseline(arguments)
    results = read_all_results([Path(text) for text in arguments.results])
    expires_on = last_valid_day(arguments)
    baseline = baseline_from_results(
        results,
        name=name,
        cluster=arguments.cluster,
        cases=arguments.case,
        gpus=arguments.gpus,
    )
    baseline = replace(baseline, recorded_by=login_name(), expires_on=expires_on)
    losses, entries = smallest_losses(baseline), entries_of(baseline.runs)
    if not arguments.weak:
        more = 2 * max(len(runs) for runs in entries.values())
        how = "while nothing else runs, or longer ones (--run-seconds), or take it with --weak"
        validate_strength(losses, f"add runs (--runs {more} --resume FILE) {how}", known={})
    write_new(output, baseline)
    until = "" if expires_on is None else f", valid until {expires_on}"
    runs = counted(len(baseline.runs), "run")
    sys.stdout.write(f"{output}: {counted(len(entries), 'entry')} from {runs}{until}\n")
    if busy := busy_hosts(baseline.runs):
        host, load = busy[0]
        remark(
            f"warning: a host was busy in {len(busy)} of {len(baseline.runs)} runs "
            f"({host}: {load_text(load)}), which blurs what later nights are "
            "compared with; measure them again while nothing else runs"
        )
    text = range_text(losses)
    sys.stdout.write(f"the smallest loss that as many runs again would find: {text}\n")
    if weak := [f"{each}" for each in losses if each.loss > _WEAK]:
        remark(
            "warning: against this baseline only large losses can be found: "
            f"{listed(weak, MOST_NAMED)}; runs that differ that much blur the other rows too, so "
            "measure those with wide intervals again, longer (--run-seconds) or while nothing else "
            "runs"
        )
    return ExitCode.OK
