"""`gpuscale compare`: judge results against a baseline, in one or more output formats."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.text import counted, no_such, visible
from gpuscale.cli import inputs
from gpuscale.judge.compare import compare_sides, with_levels
from gpuscale.judge.compare.earlier import EarlierNights, earlier_nights, last_night
from gpuscale.judge.compare.notes import with_environment_changes
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import as_baseline, sides_of
from gpuscale.records import Baseline, Results, Run
from gpuscale.records.verdict import BaselineKind
from gpuscale.reports.comparison import View, view_of
from gpuscale.reports.comparison.formats import COMPARISON_FORMATS
from gpuscale.reports.screen import Screen
from gpuscale.store.files import write_report

HISTORY_HELP = "judge against the earlier nights whose results lie below this folder"


class Reference(NamedTuple):
    """A baseline to judge results against, and any earlier nights from which it was made."""

    path: Path | None
    baseline: Baseline
    kind: BaselineKind
    runs: Sequence[Run] = ()
    """The runs with their windows; none from a baseline file, which lacks windows."""
    nights: EarlierNights | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Judge results against a baseline, or against earlier results."
    parser.epilog = (
        "Exit codes: 0 ok or improved, 1 regressed, 2 usage or unreadable input, 3 not shown to be "
        "fine, such as inconclusive or missing rows, 4 nothing comparable was measured."
    )
    text = (
        "a baseline such as baselines/arc4.json or an earlier results file (not with --history), "
        "then results files of one machine (default: the newest in .gpuscale/results; with "
        "--history the folder's last night)"
    )
    # Without a default, argparse's error message would call the files required.
    add, kind = parser.add_argument, inputs.results_path
    add("files", metavar="BEFORE RESULTS", type=kind, nargs="*", default=(), help=text)
    add("--history", metavar="DIR", type=Path, help=HISTORY_HELP)
    inputs.add_selection(parser, "judge")
    *names, last = COMPARISON_FORMATS
    text = (
        f"{', '.join(names)} or {last}, to standard output or into a file; may be given several "
        "times, such as --format junit=report.xml --format markdown=comment.md (default: text to "
        "standard output, also if the others go to files)"
    )
    add("--format", metavar="FORMAT[=FILE]", action="append", help=text)


def run(arguments: argparse.Namespace) -> int:
    files, folder = [*arguments.files], arguments.history
    if folder is None and not files:
        raise UsageError("compare: give a baseline or an earlier results file, or --history DIR")
    before = folder or files.pop(0)
    named = visible(str(before))
    # Read before the search for results, whose error would hide that of the named file.
    content = None if folder else inputs.read_content(before)
    try:
        paths = files or ([] if folder else [inputs.newest_input()])
    except FileError as error:
        raise UsageError(f"{error}; {named}, given alone, is the baseline") from error
    outputs = outputs_of(arguments.format, [before, *paths])
    validate_sides(before, paths)
    read = inputs.read_nights([before]) if folder else []
    inputs.say_left_out(read)
    results = inputs.read_all_results(paths, or_baselines=True) if paths else last_night(read)
    if not paths:
        inputs.remark(f"judging the last night below {named}, since no results are given")
    if content is None:
        reference = reference_of_nights(before, read, results)
    else:
        reference = reference_of_file(before, content, results)
    view = judged(reference, results, paths, arguments)
    _write(outputs, view)
    return view.exit_code


def reference_of_file(
    path: Path, content: Results | Baseline, results: Sequence[Results]
) -> Reference:
    """Return a file's content as a reference; raise FileError if it shares runs with `results`."""
    if isinstance(content, Baseline):
        return Reference(path, content, "baseline")
    identities = {run.identity for after in results for run in after.runs}
    if shared := sum(run.identity in identities for run in content.runs):
        problem = f"has {counted(shared, 'run')} of the results to judge"
        made = "one was copied or recorded from the other"
        raise FileError(visible(str(path)), f"{problem}: {made}; name another file")
    return Reference(path, as_baseline(content, path.stem), "results", content.runs)


def reference_of_nights(
    folder: Path | None, read: Sequence[Results], results: Sequence[Results]
) -> Reference:
    """Return a reference made from the nights in `read` that began before those of `results`."""
    nights = earlier_nights(read, results)
    if nights.later:
        later = counted(nights.later, "night")
        inputs.remark(f"--history: left out: {later} that began after these results")
    baseline = nights.as_baseline(str(folder or "earlier nights"))
    runs = [run for night in nights.last for run in night.runs]
    return Reference(folder, baseline, "nights", runs, nights)


def judged(
    reference: Reference,
    results: Sequence[Results],
    files: Sequence[Path],
    arguments: argparse.Namespace,
) -> View:
    """Judge the rows that the options select; return verdicts, likely causes and notes to show."""
    sides = sides_of(reference.baseline, results)
    sides = replace(sides, is_of_nights=reference.nights is not None)
    comparison = compare_sides(sides, inputs.choice_of(arguments))
    comparison = diagnose(sides, comparison)
    if reference.nights is not None:
        comparison = with_levels(comparison, reference.nights)
    comparison = with_environment_changes(comparison, sides)
    named = [path for path in (reference.path,) if path is not None]
    return view_of(comparison.of_files(reference.kind, named, files), sides.after)


def validate_sides(before: Path, after: Sequence[Path]) -> None:
    if any(inputs.is_same(before, path) for path in after):
        raise UsageError(f"{visible(str(before))} is given as both sides; name another file")


def outputs_of(
    options: Sequence[str] | None, others: Sequence[Path]
) -> list[tuple[str, Path | None]]:
    """Parse `--format` into (format, file or None to print); raise if a file is in `others` too."""
    outputs = [_output(option) for option in options or ()]
    printed = [name for name, path in outputs if path is None]
    if len(printed) > 1:
        problem = f"{' and '.join(printed)} cannot go to standard output together"
        raise UsageError(f"--format: {problem}; give files, such as {printed[-1]}=FILE")
    for path in (path for _, path in outputs if path is not None):
        inputs.validate_output(path, others, "--format")
        others = [*others, path]
    return outputs if printed else [("text", None), *outputs]


def _output(option: str) -> tuple[str, Path | None]:
    name, separator, path = option.partition("=")
    if name not in COMPARISON_FORMATS:
        raise UsageError(f"--format: {no_such(name, COMPARISON_FORMATS)}")
    if separator and not path:
        raise UsageError(f"--format: no file after '{name}='; give {name} or {name}=FILE")
    return name, Path(path) if separator else None


def _write(outputs: Iterable[tuple[str, Path | None]], view: View) -> None:
    """Write the verdict in each format; raise the first error only after trying all files."""
    problems: list[FileError] = []
    printed = ""
    for name, path in outputs:
        shown = view if path else replace(view, screen=Screen.of(sys.stdout))
        text = f"{COMPARISON_FORMATS[name].render(shown)}\n"
        if path is None:
            printed = text
            continue
        try:
            write_report(path, text)
        except FileError as problem:
            problems.append(problem)
    # Printed last, since a reader such as `head` may close the pipe.
    inputs.say(printed, end="")
    if problems:
        raise problems[0]
