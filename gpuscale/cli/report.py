"""`gpuscale report`: one HTML file of what was measured, judged and seen."""

import argparse
import gc
import sys
from datetime import date
from pathlib import Path

from gpuscale.cli.compare import with_files
from gpuscale.cli.inputs import (
    add_selection,
    gpu_counts,
    is_folder,
    is_same,
    newest_input,
    read_all_results,
    read_nights,
    selected,
)
from gpuscale.compare import compare
from gpuscale.compare.notes import with_validity
from gpuscale.compare.over_nights import last_night
from gpuscale.diagnose import diagnose
from gpuscale.errors import ExitCode, UsageError
from gpuscale.history import history_of
from gpuscale.page.content import Subject
from gpuscale.page.document import report_html
from gpuscale.printable import visible
from gpuscale.recording import as_baseline
from gpuscale.reports.view import view_of
from gpuscale.store import RESULTS_FOLDER, read_any, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Write one HTML file, without scripts and network, of results: the verdict and its "
        "causes, every row, where the time goes, the GPUs, the nights before and the machines."
    )
    text = (
        "results files of one machine, and folders of nights for the history; without a file the "
        "newest night in the folders (default: the newest results in .gpuscale/results)"
    )
    parser.add_argument("paths", metavar="DIR|FILE", nargs="*", default=(), help=text)
    text = "judge against this baseline, or against an earlier results file"
    parser.add_argument("--baseline", metavar="FILE", help=text)
    add_selection(parser, "judge")
    text = "the page (default: report.html)"
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the page; the exit code says whether it was, and nothing about the verdict."""
    gc.disable()
    try:
        output = Path(arguments.output)
        paths = [Path(text) for text in arguments.paths] or [newest_input(RESULTS_FOLDER)]
        baseline = None if arguments.baseline is None else Path(arguments.baseline)
        if any(is_same(output, path) for path in (*paths, *([baseline] if baseline else []))):
            raise UsageError(f"-o: {visible(str(output))} is an input and is not overwritten")
        if baseline is not None and any(is_same(baseline, path) for path in paths):
            raise UsageError(f"{visible(str(baseline))} is given as both sides; name another file")
        gpus = None if arguments.gpus is None else gpu_counts(arguments.gpus)
        subject = _subject(paths, baseline, cases=arguments.case, gpus=gpus)
        page = report_html(subject)
        write_report(output, page)
        size_kb = len(page.encode()) / 1000
        sys.stdout.write(f"{visible(str(output))}: {size_kb:.0f} kB\n")
        return ExitCode.OK
    finally:
        gc.enable()


def _subject(
    paths: list[Path],
    baseline_path: Path | None,
    *,
    cases: list[str] | None,
    gpus: frozenset[int] | None,
) -> Subject:
    files = [path for path in paths if not is_folder(path)]
    history = None
    nights = read_nights(paths) if len(files) < len(paths) else []
    results = read_all_results(files) if files else last_night(nights)
    if nights:
        try:
            history = history_of(nights, cases=cases, gpus=gpus)
        except UsageError as problem:
            sys.stderr.write(f"gpuscale: the page has no history: {problem}\n")
    shown = selected(results, cases=cases, gpus=gpus)
    if baseline_path is None:
        if any(each.runs for each in results) and not any(each.runs for each in shown):
            there = ", ".join(sorted({run.key.label for its in results for run in its.runs}))
            raise UsageError(f"--case, --gpus: no run is of these; there are {there}")
        return Subject(results=shown, history=history)
    baseline = as_baseline(read_any(baseline_path), baseline_path.stem)
    comparison = diagnose(baseline, results, compare(baseline, results, cases=cases, gpus=gpus))
    comparison = with_validity(comparison, baseline, results, today=date.today())
    view = view_of(with_files(comparison, baseline_path, files), results)
    return Subject(results=shown, baseline=baseline, view=view, history=history)
