"""Options shared by several commands, and functions that read the files they name."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gpuscale.analysis.nights import left_out_of
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import DEVICES
from gpuscale.base.text import visible
from gpuscale.judge.sides import results_of
from gpuscale.records import Baseline, Results, Run, deduplicated
from gpuscale.records.baseline import PublishedFigure
from gpuscale.records.configuration import Choice
from gpuscale.reports.phrases import counted, enumerated, to_minutes
from gpuscale.store.files import file_errors, read_any
from gpuscale.store.results import (
    RESULTS_FOLDER,
    newest_results,
    read_results,
    with_recorded_probes,
)

_Content = TypeVar("_Content", bound=Results | Baseline)
_ALONE = "; it was given alone"
RESULTS_NAME = re.compile(r"[^.].*\.jsonl(\.gz|\.xz|\.zst)?", re.DOTALL)


def remark(text: str) -> None:
    """Print a line that begins with `gpuscale:` to standard error."""
    sys.stderr.write(f"gpuscale: {text}\n")


def say(text: str, end: str = "\n") -> None:
    """Print a text to standard output, and flush the output at once."""
    sys.stdout.write(f"{text}{end}")
    sys.stdout.flush()


def results_path(text: str) -> Path:
    """Return the path of a file; a folder stands for its only results file, as a night's does."""
    path = Path(text)
    found = [*files_below(path, RESULTS_NAME.fullmatch)] if is_folder(path) else []
    return found[0] if len(found) == 1 else path


def read_all_results(paths: Sequence[Path], *, or_baselines: bool = False) -> list[Results]:
    """Read results files; drop repeated runs, and excluded nights unless all are excluded.

    Raise a UsageError if injected faults differ; `or_baselines` allows baselines.
    """
    read: list[Results] = []
    for path in paths:
        _validate_no_folder(path, "name those to use: {pattern}")
        content = read_any(path) if or_baselines else read_results(path)
        if isinstance(content, Baseline) and not content.runs:
            raise FileError(path, "has no measured runs; give it first, before the results")
        if isinstance(content, Baseline):
            read += results_of(content)
        else:
            read.append(with_recorded_probes(path, content))
    if len({results.injections for results in read}) > 1:
        problem = "the files have different injected faults, so they cannot form one curve"
        raise UsageError(f"{problem}; give one of them as the baseline, or leave it out")
    once = each_run_once(read)
    kept = [results for results in once if results.left_out is None]
    say_left_out(once, "" if kept else _ALONE)
    used = kept or once
    digests = by_key(script for each in used for script in each.environment.scripts.items())
    if names := [name for name, found in digests.items() if len({*found}) > 1]:
        changed = visible(enumerated(names))
        remark(f"beware: taken together, though {changed} changed between these results")
    return used


def read_content(path: Path) -> Results | Baseline:
    """Read a baseline or results file; keep only one copy of each run in results."""
    nights = "'gpuscale compare --history {folder}' judges the last, 'gpuscale history {folder}'"
    _validate_no_folder(path, f"{nights} shows all; or name one, such as {{last}}")
    content = read_any(path)
    if isinstance(content, Baseline):
        return content
    say_left_out([content], _ALONE)
    return each_run_once([with_recorded_probes(path, content)])[0]


def _validate_no_folder(path: Path, use: str) -> None:
    """Raise a FileError for a folder: what it holds, and the `use` of the results files in it."""
    if not is_folder(path):
        return
    files, folder = sorted(files_below(path, RESULTS_NAME.fullmatch)), shlex.quote(str(path))
    if not files:
        raise FileError(path, "is a folder without results; give one of the files in it")
    last = files[-1].relative_to(path)
    stars = "*/" * (len(last.parts) - 1)
    globs = (f"{stars}{name}" for name in (last.name, f"*{last.suffix}"))
    found = next((glob for glob in globs if {*path.glob(glob)} == {*files}), last)
    use = use.format(folder=folder, pattern=f"{folder}/{found}", last=f"{folder}/{last}")
    raise FileError(path, f"is a folder with {counted(len(files), 'results file')}; {use}")


def say_left_out(read: Iterable[Results], suffix: str = "") -> None:
    """Print the nights that users have excluded to standard error, each with a `suffix`."""
    for night in left_out_of(read):
        remark(f"left out: {night}{suffix}")


def each_run_once(read: Sequence[Results]) -> list[Results]:
    """Keep one copy of each run; print to standard error how many copies were removed."""
    once = deduplicated(read)
    before, after = (sum(len(results.runs) for results in side) for side in (read, once))
    if after < before:
        remark(f"left out: {counted(before - after, 'repeated run')}; each counts once")
    return once


def is_folder(path: Path) -> bool:
    """True if the path is a folder; raise a FileError if the path cannot be examined."""
    with file_errors(path):
        return path.is_dir()


def files_below(folder: Path, is_wanted: Callable[[str], object]) -> Iterator[Path]:
    """Yield files with wanted names below a folder; follow links to folders, skip hidden ones."""

    def skip_unreadable(problem: OSError) -> None:
        remark(f"left out: {visible(str(problem.filename))}: {problem.strerror}")

    # A link may lead to a folder that was already visited, or to a parent of `folder`.
    seen = {str(above) for above in Path(os.path.realpath(folder)).parents}
    for here, folders, names in os.walk(folder, onerror=skip_unreadable, followlinks=True):
        if (place := os.path.realpath(here)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(here, name) for name in names if is_wanted(name))


def newest_input() -> Path:
    """Return the path of the newest results with a valid run, or else of the newest results.

    Print to standard error which file is used, and the newer ones without a valid run (yet).
    """
    paths = newest_results(RESULTS_FOLDER)
    for number, path in enumerate(paths):
        results = read_results(path)
        if any(run.is_valid for run in results.runs):
            if newer := [visible(str(other)) for other in paths[:number]]:
                remark(f"left out: newer, but without a valid run: {enumerated(newer, 2)}")
            measured = f"{to_minutes(results.created_at)} UTC"
            remark(f"the newest results: {visible(str(path))}, measured {measured}")
            return path
    shown = visible(str(paths[0]))
    remark(f"the newest results, {shown}, have no valid run; name other results to use them")
    return paths[0]


def is_same(path: Path, other: Path) -> bool:
    """True if two paths denote the same file, even if the file does not exist yet."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return path.absolute() == other.absolute()


def validate_output(path: Path, others: Iterable[Path | None], option: str = "-o") -> None:
    """Raise a UsageError if an output file is also an input or another output."""
    if any(is_same(path, other) for other in others if other is not None):
        problem = f"{visible(str(path))} is already an input or output of this command"
        raise UsageError(f"{option}: {problem}; choose another file")


def add_selection(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the options that select rows; their help texts begin with `verb`, such as `judge`."""
    text = f"{verb} only these numbers of GPUs (default: all)"
    parser.add_argument("--gpus", metavar="N,N,…", type=gpu_counts, help=text)
    text = f"{verb} only this case; may be given several times (default: all)"
    parser.add_argument("--case", metavar="CASE[/STRATEGY]", action="append", help=text)


def add_device(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    text = f"{prefix}auto (default: GPUs if there are any), cuda or rocm (GPUs), or cpu"
    parser.add_argument("--device", choices=("auto", *DEVICES), default="auto", help=text)


def add_text_or_json(parser: argparse.ArgumentParser) -> None:
    text = "text (default) or json"
    parser.add_argument("--format", choices=("text", "json"), default="text", help=text)


def choice_of(arguments: argparse.Namespace, contents: Sequence[Results | Baseline] = ()) -> Choice:
    """Return the rows that the options choose; raise UsageError for one that the contents lack."""
    choice = Choice(cases=arguments.case, gpus=arguments.gpus)
    keys = [run.key for content in contents for run in content.runs]
    keys += [row.key for each in contents if isinstance(each, Baseline) for row in each.published]
    choice.validate(keys)
    return choice


def selected(content: _Content, choice: Choice) -> _Content:
    """Return a file's content with the selected rows, and the 1-GPU rows needed for speedups."""

    def is_wanted(row: Run | PublishedFigure) -> bool:
        return choice.includes(row.key) or (row.gpus == 1 and row.key.is_of(choice.cases))

    kept = replace(content, runs=tuple(filter(is_wanted, content.runs)))
    if isinstance(kept, Baseline):
        kept = replace(kept, published=tuple(filter(is_wanted, kept.published)))
    return kept


def gpu_counts(text: str) -> frozenset[int]:
    """Parse the value of `--gpus`, such as `1,2,4`; raise a UsageError if it is invalid."""
    try:
        counts = frozenset(int(part) for part in text.split(","))
    except ValueError:
        counts = frozenset()
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus: '{text}' is not a list of numbers above 0, such as 1,2,4")
    return counts


def direction(text: str) -> tuple[str, str]:
    """Parse a value of `--better`, such as `latency=less`; return the metric and the direction."""
    name, _, way = text.partition("=")
    if not name or way not in ("more", "less"):
        raise UsageError(f"--better: '{text}' is not like throughput=more or latency=less")
    return name, way
