"""`gpuscale plot`: draw results for a paper, a ticket or a proposal."""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.printable import visible
from gpuscale.cli.inputs import (
    add_cases,
    newest_input,
    read_all_results,
    read_content,
    read_nights,
    remark,
    validate_output,
)
from gpuscale.judge.recording import as_baseline
from gpuscale.records import Baseline
from gpuscale.reports.figures import FIGURES, KINDS, Measurements, content_of
from gpuscale.store import RESULTS_FOLDER, read_any
from gpuscale.store.files import write_content


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draw results, a baseline, or nights, as SVG or PDF (vectors) or PNG."
    text = (
        "results files or one baseline file; of the history, files and folders of nights "
        f"(default: the newest results in {RESULTS_FOLDER}, or all of them)"
    )
    parser.add_argument("paths", metavar="FILE", nargs="*", default=(), help=text)
    text = "also draw the same rows of this baseline or earlier results file"
    parser.add_argument("--baseline", metavar="FILE", help=text)
    text = f"one of {', '.join(FIGURES)} (default: scaling)"
    parser.add_argument("--figure", choices=FIGURES, metavar="NAME", default="scaling", help=text)
    add_cases(parser, "draw")
    text = f"the picture, whose name ends with .{', .'.join(KINDS)}"
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the image file, and print the title of the plot."""
    output, paths = Path(arguments.output), [Path(text) for text in arguments.paths]
    shown = visible(str(output))
    kind = output.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"-o: {shown}: a picture's name ends with .{', .'.join(KINDS)}")
    before = None if arguments.baseline is None else Path(arguments.baseline)
    validate_output(output, [*paths, before])
    if arguments.figure == "history":
        nights = read_nights(paths or [RESULTS_FOLDER])
        measurements = Measurements(history=history_of(nights, cases=arguments.case))
    else:
        paths = paths or [newest_input()]
        measurements = _measurements(paths, before, arguments.case)
    picture = FIGURES[arguments.figure](measurements)
    if picture is None:
        problem = "the input has no data for this figure; choose another one"
        raise UsageError(f"--figure {arguments.figure}: {problem}, or another --case")
    write_content(output, content_of(picture, kind))
    sys.stdout.write(f"{shown}: {picture.title}\n")
    if picture.left_out:
        left_out = ", ".join(picture.left_out)
        remark(f"not shown: {left_out}; choose with --case")
    return ExitCode.OK


def _measurements(
    paths: Sequence[Path], before: Path | None, cases: Collection[str] | None
) -> Measurements:
    """Read the measurements of the cases and, if requested, a baseline to plot for comparison."""
    first = read_any(paths[0])
    if isinstance(first, Baseline):
        if len(paths) > 1 or before is not None:
            problem = "is a baseline; draw it alone, or give it as --baseline beside results"
            raise UsageError(f"{visible(str(paths[0]))} {problem}")
        return Measurements(baseline=_of_cases(first, cases))
    results = read_all_results(paths, one_curve=True)
    baseline = None if before is None else as_baseline(read_content(before), before.stem)
    return Measurements(
        runs=[run for file in results for run in file.runs if run.key.is_of(cases)],
        baseline=baseline and _of_cases(baseline, cases),
        injections=results[0].injections,
    )


def _of_cases(baseline: Baseline, cases: Collection[str] | None) -> Baseline:
    return replace(
        baseline,
        runs=tuple(run for run in baseline.runs if run.key.is_of(cases)),
        published=tuple(figure for figure in baseline.published if figure.key.is_of(cases)),
    )
