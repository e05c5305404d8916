"""`gpuscale show`: print a results or baseline file as a table, for people or other tools."""

import argparse
import sys

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.cli import inputs
from gpuscale.reports.screen import Screen
from gpuscale.reports.show import Shown
from gpuscale.reports.show.formats import SHOWN_FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a results or baseline file as a table."
    text = "results or baseline file (default: the newest in .gpuscale/results)"
    parser.add_argument("file", metavar="FILE", type=inputs.results_path, nargs="?", help=text)
    inputs.add_selection(parser, "show")
    text = "the phases of a step instead of the scaling table"
    parser.add_argument("--phases", action="store_true", help=text)
    text = ", ".join(f"{name} ({each.purpose})" for name, each in SHOWN_FORMATS.items())
    parser.add_argument("--format", choices=tuple(SHOWN_FORMATS), default="text", help=text)
    text = "add the GPU-hours of a training of N steps"
    parser.add_argument("--steps", metavar="N", type=_steps, help=text)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file or inputs.newest_input()
    content = inputs.read_content(path)
    shown = Shown(
        content=inputs.selected(content, inputs.choice_of(arguments, [content])),
        path=path,
        steps=arguments.steps,
        phases=arguments.phases,
        columns=Screen.of(sys.stdout).columns,
    )
    if shown.phases and (arguments.format != "text" or shown.steps is not None):
        problem = "--phases prints text; csv and json have the phases of every row without it"
        raise UsageError(f"{problem}; leave out --phases, or --format and --steps")
    inputs.say(SHOWN_FORMATS[arguments.format].render(shown))
    return ExitCode.OK


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:20]) <= 10**15:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of steps, such as 100000")
    return int(text)
