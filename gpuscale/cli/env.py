"""`gpuscale env`: show the software of measurements, or what differs between two of them."""

import argparse
import sys
from pathlib import Path

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.cli.inputs import add_text_or_json, is_folder, read_content, read_nights
from gpuscale.records import Results
from gpuscale.records.json_text import document_text
from gpuscale.records.run import nodes_of
from gpuscale.reports.software_text import (
    MeasuredWith,
    changes_between,
    changes_text,
    software_text,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the software of a measurement, or what differs between two: results, baselines or "
        "folders of nights. What differs is not the cause of a loss by itself."
    )
    text = "one measurement, or the word diff and two"
    parser.add_argument("files", metavar="FILE | diff A B", nargs="+", help=text)
    text = "list all packages, not only those known to matter"
    parser.add_argument("--all", action="store_true", help=text)
    add_text_or_json(parser)


def run(arguments: argparse.Namespace) -> int:
    is_diff, is_json = arguments.files[0] == "diff", arguments.format == "json"
    paths = [Path(name) for name in arguments.files[is_diff:]]
    if len(paths) != 1 + is_diff:
        raise UsageError("env: give one file or folder, or 'diff' and two of them")
    sides = [_measured_with(path) for path in paths]
    if is_diff:
        changes, packages = changes_between(*sides)
        text = changes_text(changes, packages, show_all=arguments.all)
        if is_json:
            text = document_text("gpuscale-env-diff", changes=changes, packages=packages)
    else:
        text = software_text(sides[0], show_all=arguments.all)
        if is_json:
            environments, libraries = sides[0].environments, sides[0].libraries
            text = document_text("gpuscale-env", environments=environments, libraries=libraries)
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK


def _measured_with(path: Path) -> MeasuredWith:
    if is_folder(path):
        nights = [night for night in read_nights([path]) if night.left_out is None]
        runs = [run for night in nights for run in night.runs]
        return MeasuredWith([night.environment for night in nights], nodes_of(runs))
    content = read_content(path)
    found = [content.environment] if isinstance(content, Results) else content.environments.values()
    return MeasuredWith([*found], nodes_of(content.runs))
