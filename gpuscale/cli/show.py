"""`gpuscale show`: print a results or baseline file as a table, for people or other tools."""

import argparse
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from gpuscale.analysis.projection import Projection, projections
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.cli.inputs import gpu_counts, newest_valid, read_content, remark
from gpuscale.records import Baseline, Results
from gpuscale.reports import SHOWN_FORMATS
from gpuscale.reports.phrases import configuration_text
from gpuscale.reports.screen import Screen
from gpuscale.reports.show import Shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a results or baseline file as a table."
    text = "results or baseline file (default: the newest in .gpuscale/results)"
    parser.add_argument("file", metavar="FILE", nargs="?", help=text)
    text = "the phases of a step instead of the scaling table"
    parser.add_argument("--phases", action="store_true", help=text)
    text = ", ".join(f"{name} ({purpose})" for name, purpose in SHOWN_FORMATS.items())
    parser.add_argument("--format", choices=tuple(SHOWN_FORMATS), default="text", help=text)
    text = "add the GPU-hours of a training of N steps"
    parser.add_argument("--steps", metavar="N", type=_steps, help=text)
    text = (
        "T, S and E projected to numbers of GPUs that were not measured, with their error bands; "
        "needs measurements on at least 3 numbers"
    )
    parser.add_argument("--project", metavar="N,N,…", help=text)


def run(arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    file = arguments.file
    path = newest_valid(now)[0] if file is None else Path(file)
    content = read_content(path)
    shown = Shown(
        content=content,
        path=path,
        now=now,
        steps=arguments.steps,
        projections=_projections(content, arguments.project),
        phases=arguments.phases,
        columns=Screen.of(sys.stdout).columns,
    )
    if shown.phases:
        _check_phases(shown, arguments.format)
    # Each format is imported only when it is asked for.
    text = import_module(f"gpuscale.reports.show.as_{arguments.format}").render(shown)
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK


def _projections(content: Results | Baseline, numbers: str | None) -> tuple[Projection, ...]:
    """Return the projections that are possible; print to standard error why others are not."""
    if numbers is None:
        return ()
    made: list[Projection] = []
    refused: list[str] = []
    for result in projections(content.runs, sorted(gpu_counts(numbers, "--project"))):
        if isinstance(result, Projection):
            made.append(result)
        else:
            words = configuration_text(result.configuration)
            refused.append(f"--project: {result.configuration.label} ({words}): {result.reason}")
    if not made:
        raise UsageError(refused[0] if refused else "--project: no run was measured")
    for line in refused:
        remark(line)
    return tuple(made)


def _check_phases(shown: Shown, format_name: str) -> None:
    if not isinstance(shown.content, Results):
        raise UsageError(f"{shown.path}: a baseline has no phases; give --phases a results file")
    if format_name != "text" or shown.steps is not None or shown.projections:
        raise UsageError("--phases prints text only; leave out --format, --steps and --project")


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:20]) <= 10**15:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of steps, such as 100000")
    return int(text)
