"""`gpuscale plot`: a picture for a paper, a ticket, or a proposal for computing time."""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.printable import visible
from gpuscale.cli.inputs import (
    newest_input,
    read_all_results,
    read_content,
    read_nights,
    refuse_as_output,
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
    text = "draw what this baseline, or this earlier results file, has beside it"
    parser.add_argument("--baseline", metavar="FILE", help=text)
    text = f"one of {', '.join(FIGURES)} (default: scaling)"
    parser.add_argument("--figure", choices=FIGURES, metavar="NAME", default="scaling", help=text)
    text = "draw only this case; may be given several times (default: all)"
    parser.add_argument("--case", metavar="CASE[/STRATEGY]", action="append", help=text)
    text = f"the picture, of a kind that its name tells: {', '.join(KINDS)}"
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the picture, and say what it shows."""
    output, paths = Path(arguments.output), [Path(text) for text in arguments.paths]
    shown = visible(str(output))
    kind = output.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"-o: {shown}: a picture's name ends with .{', .'.join(KINDS)}")
    before = None if arguments.baseline is None else Path(arguments.baseline)
    refuse_as_output(output, [*paths, *([before] if before else [])])
    if arguments.figure == "history":
        nights = read_nights(paths or [RESULTS_FOLDER])
        measurements = Measurements(history=history_of(nights, cases=arguments.case))
    else:
        paths = paths or [newest_input(RESULTS_FOLDER)]
        measurements = _measurements(paths, before, arguments.case)
    picture = FIGURES[arguments.figure](measurements)
    if picture is None:
        problem = "there is nothing of it in what was given; choose another one"
        raise UsageError(f"--figure {arguments.figure}: {problem}, or another --case")
    write_content(output, content_of(picture, kind))
    sys.stdout.write(f"{shown}: {picture.title}\n")
    if picture.left_out:
        left_out = ", ".join(picture.left_out)
        sys.stderr.write(f"gpuscale: not shown: {left_out}; choose with --case\n")
    return ExitCode.OK


def _measurements(
    paths: Sequence[Path], before: Path | None, cases: Collection[str] | None
) -> Measurements:
    """What files hold of the cases, and the baseline beside it."""
    first = read_any(paths[0])
    if isinstance(first, Baseline):
        if len(paths) > 1 or before is not None:
            problem = "is a baseline; draw it alone, or give it as --baseline beside results"
            raise UsageError(f"{visible(str(paths[0]))} {problem}")
        return Measurements(baseline=_of_cases(first, cases))
    results = read_all_results(paths, one_curve=True)
    baseline = None if before is None else as_baseline(read_content(before), before.stem)
    return Measurements(
        runs=[run for each in results for run in each.runs if run.key.is_of(cases)],
        baseline=baseline and _of_cases(baseline, cases),
        injections=results[0].injections,
    )


def _of_cases(baseline: Baseline, cases: Collection[str] | None) -> Baseline:
    return replace(
        baseline,
        runs=tuple(run for run in baseline.runs if run.key.is_of(cases)),
        published=tuple(each for each in baseline.published if each.key.is_of(cases)),
    )
