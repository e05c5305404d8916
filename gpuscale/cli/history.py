"""`gpuscale history`: show in which nightly runs a result changed, and what else changed then."""

import argparse
import sys
from pathlib import Path

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode
from gpuscale.cli import inputs
from gpuscale.cli.compare import judged, reference_of_nights
from gpuscale.judge.compare.earlier import last_night
from gpuscale.reports.history_text import render
from gpuscale.reports.screen import Screen
from gpuscale.store.results import RESULTS_FOLDER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show when rows changed over the nights, and what else changed then."
    text = (
        "results files, or folders of them "
        f"(default: {RESULTS_FOLDER}, or else the nights of the only machine)"
    )
    parser.add_argument("paths", metavar="DIR|FILE", type=Path, nargs="*", default=(), help=text)
    inputs.add_selection(parser, "show")


def run(arguments: argparse.Namespace) -> int:
    nights = inputs.read_nights(arguments.paths or [inputs.default_folder()])
    history = history_of(nights, inputs.choice_of(arguments, nights))
    results, verdict = last_night(nights), None
    tonight = {each.allocation_of(run) for each in results for run in each.runs}
    # The last night may be the only one, or lack the chosen rows.
    if len(history.nights) > 1 and history.nights[-1].allocation in tonight:
        reference = reference_of_nights(None, nights, results)
        verdict = judged(reference, results, [], arguments).headline[0]
    inputs.say(render(history, Screen.of(sys.stdout), verdict))
    return ExitCode.OK
