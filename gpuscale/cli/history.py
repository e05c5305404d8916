"""`gpuscale history`: nights after nights, when a row changed, and what else changed then."""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuscale.cli.inputs import add_selection, gpu_counts
from gpuscale.errors import ExitCode, FileError
from gpuscale.history import history_of
from gpuscale.night import FIRST_ATTEMPT
from gpuscale.printable import visible
from gpuscale.records import Results
from gpuscale.report.history_text import render
from gpuscale.report.screen import Screen
from gpuscale.store import RESULTS_FOLDER, read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = "When rows of a machine changed over its nights, and what else did then."
    text = f"results files, or folders of them (default: {RESULTS_FOLDER})"
    parser.add_argument("paths", metavar="DIR|FILE", nargs="*", default=(), help=text)
    add_selection(parser, "show")


def run(arguments: argparse.Namespace) -> int:
    """Print the history; what cannot be read is named and left out."""
    gc.disable()
    try:
        paths = [Path(text) for text in arguments.paths] or [RESULTS_FOLDER]
        gpus = None if arguments.gpus is None else gpu_counts(arguments.gpus)
        history = history_of(read_nights(paths), cases=arguments.case, gpus=gpus)
        sys.stdout.write(f"{render(history, Screen.of(sys.stdout))}\n")
        return ExitCode.OK
    finally:
        gc.enable()


def read_nights(paths: Sequence[Path]) -> list[Results]:
    """The results in files and below folders; each run once, though a night's bundle repeats it.

    A file of a folder that is damaged or was measured with faults on purpose is named on standard
    error and left out. A FileError where nothing is left, or a file that was named is damaged.
    """
    seen: set[tuple[object, ...]] = set()
    found = []
    for path, is_named in _files(paths):
        try:
            results = read_results(path)
        except FileError as error:
            if is_named:
                raise
            sys.stderr.write(f"gpuscale: left out: {error}\n")
            continue
        if results.injections:
            faults = ", ".join(results.injections)
            sys.stderr.write(
                f"gpuscale: left out: {visible(str(path))}: has faults made on purpose ({faults})\n"
            )
            continue
        runs = {
            (run.key, run.configuration, run.index, run.started_at_s): run for run in results.runs
        }
        found.append(replace(results, runs=tuple(runs[each] for each in runs if each not in seen)))
        seen.update(runs)
    if not found:
        raise FileError(paths[0], "there are no results here; name the folder of the nights")
    return found


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """The results files, and True for those that were named themselves.

    What a night's first attempt measured beside a fault is no night.
    """
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        for file in sorted(path.rglob("*.jsonl")):
            below = file.relative_to(path).parts
            if FIRST_ATTEMPT not in below and not any(part.startswith(".") for part in below):
                yield file, False
