"""`gpuscale report`: write an HTML file with results, verdict and evidence."""

import argparse
from pathlib import Path

from msgspec.structs import replace

from gpuscale.analysis.history import history_of
from gpuscale.base.errors import ExitCode, UsageError, require_packages
from gpuscale.base.text import visible
from gpuscale.cli import compare, inputs
from gpuscale.cli.fleet import view_of_sweep
from gpuscale.judge.compare.earlier import last_night
from gpuscale.judge.sides import sides_of
from gpuscale.reports.page import Subject
from gpuscale.reports.page.fleet import fleet_html
from gpuscale.reports.page.sections import report_html
from gpuscale.store.campaign_folders import SWEEP_JSON
from gpuscale.store.files import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write one HTML file of results, without scripts or network access: the verdict and its "
        "causes, every row, the phases of a step, the GPUs and earlier nights."
    )
    text = (
        "results files of one machine, and folders of nights for the history; without a file the "
        "newest night in the folders (default: the newest results in .gpuscale/results); or the "
        "folder of a sweep, for a page of its nodes"
    )
    parser.add_argument("paths", metavar="DIR|FILE", type=Path, nargs="*", default=(), help=text)
    before = parser.add_mutually_exclusive_group()
    text = "judge against this baseline, or against an earlier results file"
    before.add_argument("--baseline", metavar="FILE", type=inputs.results_path, help=text)
    before.add_argument("--history", metavar="DIR", type=Path, help=compare.HISTORY_HELP)
    inputs.add_selection(parser, "judge")
    text, default = "the page (default: report.html)", Path("report.html")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=default, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the HTML page; the exit code does not depend on the verdict."""
    output, baseline, folder = arguments.output, arguments.baseline, arguments.history
    paths = arguments.paths or ([] if folder else [inputs.newest_input()])
    inputs.validate_output(output, [*paths, baseline, folder])
    if baseline is not None:
        compare.validate_sides(baseline, paths)
    if len(paths) == 1 and (paths[0] / SWEEP_JSON).is_file():
        require_packages("the report of a sweep", ("ClusterShell",))
        page = fleet_html(view_of_sweep(paths[0]))
    else:
        page = report_html(_subject(arguments, paths))
    write_report(output, page)
    inputs.say(f"{visible(str(output))}: {len(page.encode()) / 1000:.0f} kB")
    return ExitCode.OK


def _subject(arguments: argparse.Namespace, paths: list[Path]) -> Subject:
    before, earlier = arguments.baseline, arguments.history
    files = [path for path in paths if not inputs.is_folder(path)]
    if earlier is not None and len(files) < len(paths):
        raise UsageError("--history: give results files with it, or none for its last night")
    folders = [path for path in (*paths, *([earlier] if earlier else [])) if path not in files]
    nights = inputs.read_nights([*folders, *files]) if folders else []
    results = inputs.read_all_results(files) if files else last_night(nights)
    # The comparison with a baseline or earlier nights validates the choice itself.
    known = results if before is None and earlier is None else ()
    history, choice = None, inputs.choice_of(arguments, known)
    if nights:
        try:
            history = history_of(nights, choice)
        except UsageError as problem:
            inputs.remark(f"the page has no history: {problem}")
    subject = Subject(results=[inputs.selected(file, choice) for file in results], history=history)
    if earlier is not None:
        reference = compare.reference_of_nights(earlier, nights, results)
    elif before is not None:
        reference = compare.reference_of_file(before, inputs.read_content(before), results)
    else:
        return subject
    view = compare.judged(reference, results, files, arguments)
    # What the verdict leaves out is not drawn either.
    baseline = sides_of(reference.baseline, results).usual.baseline
    kept = {run.identity for run in baseline.runs}
    earlier = [run for run in reference.runs if run.identity in kept]
    return replace(subject, baseline=baseline, earlier=earlier, view=view)
