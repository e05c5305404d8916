"""`gpuscale history`: show in which nightly runs a result changed, and what else had changed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode
from gpuscale.cli.compare import judged, reference_of_nights
from gpuscale.cli.inputs import (
    add_selection,
    read_nights,
    say,
    validate_choice,
    without_collecting,
)
from gpuscale.judge.compare import last_night
from gpuscale.records import Results
from gpuscale.reports.comparison import view_of
from gpuscale.reports.history_text import UNCLEAR, render, verdict
from gpuscale.reports.screen import Screen
from gpuscale.store.results import RESULTS_FOLDER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show when rows changed over the nights, and what else changed then."
    text = f"results files, or folders of them (default: {RESULTS_FOLDER})"
    parser.add_argument("paths", metavar="DIR|FILE", type=Path, nargs="*", default=(), help=text)
    add_selection(parser, "show")


@without_collecting()
def run(arguments: argparse.Namespace) -> int:
    """Print the history; print a message for each unreadable file in a folder, and skip it."""
    nights = read_nights(arguments.paths or [RESULTS_FOLDER])
    validate_choice(nights, arguments)
    history = history_of(nights, cases=arguments.case, gpus=arguments.gpus)
    said = verdict(history)
    is_open = history.is_unusual or (said is not None and said[0] == UNCLEAR)
    judgement = _verdict(nights, arguments) if is_open else None
    say(render(history, Screen.of(sys.stdout), judgement))
    return ExitCode.OK


def _verdict(nights: Sequence[Results], arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the verdict of `compare --history` on the last night, as a word and a text."""
    results = last_night(nights)
    reference = reference_of_nights(RESULTS_FOLDER, nights, results)
    return view_of(judged(reference, results, [], arguments), results).headline[0]
