"""`gpuscale plot`: draw results for a paper, a ticket or a proposal."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.text import counted, visible
from gpuscale.cli import inputs
from gpuscale.judge.sides import as_baseline, machine_label, sides_of
from gpuscale.records import Baseline, Results
from gpuscale.reports.figures import FIGURES, KINDS, Measurements, content_of
from gpuscale.reports.phrases import UNKNOWN, busy_text, format_range
from gpuscale.store.files import read_any, write_report
from gpuscale.store.results import RESULTS_FOLDER, read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draw results, a baseline, or nights, as SVG or PDF (vectors) or PNG."
    text = (
        "results files or one baseline file; of the history, files and folders of nights "
        f"(default: the newest results in {RESULTS_FOLDER}, or all of them)"
    )
    add, kind = parser.add_argument, inputs.results_path
    add("paths", metavar="FILE", type=kind, nargs="*", default=(), help=text)
    text = "also draw the same rows of this baseline or earlier results file"
    add("--baseline", metavar="FILE", type=kind, help=text)
    text = f"one of {', '.join(FIGURES)} (default: scaling)"
    add("--figure", choices=FIGURES, metavar="NAME", default="scaling", help=text)
    inputs.add_selection(parser, "draw")
    text = f"the picture, whose name ends with .{', .'.join(KINDS)}"
    add("-o", "--output", metavar="FILE", type=Path, required=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    output, paths, before = arguments.output, arguments.paths, arguments.baseline
    shown = visible(str(output))
    kind = output.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"-o: {shown}: a picture's name ends with .{', .'.join(KINDS)}")
    inputs.validate_output(output, [*paths, before])
    if arguments.figure == "history":
        if before is not None:
            raise UsageError("--figure history: nights need no --baseline; leave it out")
        nights = inputs.read_nights(paths or [inputs.default_folder()])
        measurements = Measurements(history=history_of(nights, inputs.choice_of(arguments, nights)))
    else:
        paths = paths or [inputs.newest_input()]
        measurements = _measurements(paths, before, arguments)
    if (picture := FIGURES[arguments.figure](measurements)) is None:
        if not any(run.is_valid for run in measurements.runs) and measurements.runs:
            raise FileError(paths[0], "no run gave a number; 'gpuscale show' says why")
        problem = "the input has no data for this figure"
        is_of_phases = arguments.figure in ("budget", "phases")
        if is_of_phases and any(run.configuration.command for run in measurements.runs):
            problem += ", since gpuscale sees no phases of a command"
        remedy = "choose another one, or another --case"
        raise UsageError(f"--figure {arguments.figure}: {problem}; {remedy}")
    write_report(output, content_of(picture, kind))
    inputs.say(f"{shown}: {picture.title}")
    if picture.left_out:
        inputs.remark(f"not shown: {', '.join(picture.left_out)}; choose with --case")
    for row in measurements.failed:
        inputs.remark(row)
    return ExitCode.OK


def _measurements(
    paths: Sequence[Path], before: Path | None, arguments: argparse.Namespace
) -> Measurements:
    first = read_any(paths[0])
    if isinstance(first, Baseline):
        if len(paths) > 1 or before is not None:
            problem = "is a baseline; draw it alone, or give it as --baseline beside results"
            raise UsageError(f"{visible(str(paths[0]))} {problem}")
        chosen = inputs.selected(first, inputs.choice_of(arguments, [first]))
        return Measurements(baseline=chosen, origins=[_origin(first)])
    results = inputs.read_all_results(paths)
    if len(results) < len(paths):
        paths = [path for path in paths if read_results(path).left_out is None]
    content = None if before is None else inputs.read_content(before)
    baseline = as_baseline(content, before.stem) if content and before else None
    choice = inputs.choice_of(arguments, [*results, *([baseline] if baseline else [])])
    earlier = inputs.selected(content, choice).runs if isinstance(content, Results) else ()
    files = [inputs.selected(file, choice) for file in results]
    runs, outlying = [run for file in files for run in file.runs], 0
    if before is not None and baseline is not None:
        whole = inputs.selected(baseline, choice)
        baseline = sides_of(whole, files).usual.baseline
        outlying = len(whole.runs) - len(baseline.runs)
        kept = {run.identity for run in baseline.runs}
        earlier = tuple(run for run in earlier if run.identity in kept)
        drawn = [*(run.key for run in baseline.runs), *(row.key for row in baseline.published)]
        if {key.name for key in drawn}.isdisjoint(run.key.name for run in runs):
            raise FileError(before, "has none of the rows to draw; leave out --baseline")
    return Measurements(
        runs=runs,
        baseline=baseline,
        earlier=earlier,
        injections=results[0].injections,
        origins=[
            *(
                _origin(file, visible(str(path)) if len(files) > 1 else "measured")
                for path, file in zip(paths, files, strict=True)
                if file.runs
            ),
            *([_origin(baseline)] if baseline else []),
            *([f"without {counted(outlying, 'outlying run')} of the baseline"] if outlying else []),
        ],
    )


def _origin(content: Results | Baseline, name: str = "") -> str:
    started_at_s = [run.started_at_s for run in content.runs if run.started_at_s is not None]
    dates = [f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}" for at_s in sorted(started_at_s)]
    if isinstance(content, Results):
        where = content.environment
        machine = ", ".join(filter(None, (where.host, where.hardware_label)))
        text = f"{name}: {format_range(dates or [content.created_at[:10]])}, {machine}"
    else:
        dates = dates or [(content.recorded_at or UNKNOWN)[:10]]
        text = f"baseline {content.name}: {format_range(dates)}, {machine_label(content)}"
    return "; ".join(filter(None, (text, busy_text(content.runs))))
