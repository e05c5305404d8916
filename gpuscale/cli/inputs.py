"""Options shared by several commands, and functions that read the given files and folders."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import force_setattr, replace

from gpuscale.analysis.nights import left_out_of
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.host import DEVICES
from gpuscale.base.text import parse_count, visible
from gpuscale.judge.sides import results_of
from gpuscale.records import Baseline, Configuration, Environment, Results, Run, deduplicated
from gpuscale.records.baseline import PublishedFigure
from gpuscale.records.configuration import Choice
from gpuscale.records.environment_diff import environment_changes, environment_text
from gpuscale.reports.phrases import counted, enumerated, to_minutes
from gpuscale.store.campaign_folders import NIGHT_JSON, nights_folder, read_night
from gpuscale.store.files import file_errors, read_any
from gpuscale.store.results import (
    RESULTS_FOLDER,
    newest_results,
    no_results,
    read_results,
    with_recorded_probes,
)

_Content = TypeVar("_Content", bound=Results | Baseline)
_ALONE = "; it was given alone"
_RESULTS_NAME = re.compile(r"[^.].*\.jsonl(\.gz|\.xz|\.zst)?", re.DOTALL)
_OF_NIGHT = re.compile(rf"{re.escape(NIGHT_JSON)}|{_RESULTS_NAME.pattern}", re.DOTALL)


def remark(text: str) -> None:
    sys.stderr.write(f"gpuscale: {text}\n")


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(f"{text}{end}")
    sys.stdout.flush()


def results_path(text: str) -> Path:
    """Return a path; if it is a folder with exactly one results file, return that file's path."""
    path = Path(text)
    found = [*files_below(path, _RESULTS_NAME.fullmatch)] if is_folder(path) else []
    return found[0] if len(found) == 1 else path


def read_all_results(paths: Sequence[Path], *, or_baselines: bool = False) -> list[Results]:
    """Read results or baselines; drop duplicate runs and, if other nights remain, excluded ones."""
    read: list[Results] = []
    for path in paths:
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
    remark_differences([each.environment for each in used])
    return used


def remark_differences(environments: Sequence[Environment]) -> None:
    """Print to standard error how the environments of results that are taken together differ."""
    changes = (environment_changes(environments[:1], [other]) for other in environments[1:])
    if texts := dict.fromkeys(environment_text(each) for found in changes for each in found):
        remark(f"beware: taken together, though they differ: {visible('; '.join(texts))}")


def read_content(path: Path) -> Results | Baseline:
    """Read a baseline or results file; keep only one copy of each run in results."""
    content = read_any(path)
    if isinstance(content, Baseline):
        return content
    say_left_out([content], _ALONE)
    return each_run_once([with_recorded_probes(path, content)])[0]


def read_nights(paths: Sequence[Path]) -> list[Results]:
    """Read results from files and folders; drop duplicate runs, and put excluded nights last.

    Files with injected faults, and unreadable files in folders, are skipped with a message.
    """
    found: list[Results] = []
    configurations: dict[Configuration, Configuration] = {}
    for path, is_named in _files(paths):
        try:
            results = read_results(path)
        except FileError as error:
            if is_named:
                raise
            remark(f"left out: {error}")
            continue
        if results.injections:
            remark(f"left out: {visible(str(path))}: {results.why_excluded}")
        else:
            # Equal configurations share one object: copies would take most of the memory.
            for run in results.runs:
                own = run.configuration
                force_setattr(run, "configuration", configurations.setdefault(own, own))
            found.append(results)
    if not found:
        raise FileError(paths[0], "there are no results here; name the folder of the nights")
    return sorted(each_run_once(found), key=lambda results: results.left_out is not None)


def _files(paths: Sequence[Path]) -> Iterable[tuple[Path, bool]]:
    """Return each results file once, with True if the user named the file rather than a folder."""
    folders = [path for path in paths if is_folder(path)]
    files = [(path, True) for path in paths if path not in folders]
    for folder in folders:
        below = sorted(files_below(folder, _OF_NIGHT.fullmatch))
        results = [path for path in below if path.name != NIGHT_JSON]
        files += [(path, False) for path in results]
        for night in sorted({path.parent for path in below} - {path.parent for path in results}):
            if record := read_night(night):
                remark(f"left out: {visible(str(night))}: no results ({record.night})")
    # A nightly report, for example, gets a results file and also the folder that contains it.
    once: dict[str, tuple[Path, bool]] = {}
    for file in files:
        once.setdefault(os.path.realpath(file[0]), file)
    return once.values()


def default_folder() -> Path:
    """Return the results folder if it has results, else the only nights folder, or raise."""
    above = nights_folder(os.environ)
    inside = above.iterdir() if is_folder(above) else ()
    folders = sorted(each for each in inside if each.name[0] != "." and each.is_dir())
    if is_folder(RESULTS_FOLDER) and any(files_below(RESULTS_FOLDER, _RESULTS_NAME.fullmatch)):
        if folders:
            remark(f"the results below {RESULTS_FOLDER}; nights are below {visible(str(above))}")
        return RESULTS_FOLDER
    if not folders:
        raise no_results(RESULTS_FOLDER)
    if len(folders) > 1:
        machines = ", ".join(visible(str(each)) for each in folders)
        raise UsageError(f"name the nights of one machine: {machines}")
    remark(f"the nights below {visible(str(folders[0]))}, since no results are given")
    return folders[0]


def say_left_out(read: Iterable[Results], suffix: str = "") -> None:
    """Print to standard error each night that users have excluded, followed by `suffix`."""
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
    """Yield files with wanted names below a folder; follow symlinks, skip hidden folders."""

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
    """Return the newest results file with a valid run, else the newest file; print its name."""
    paths = newest_results(RESULTS_FOLDER)
    for number, path in enumerate(paths):
        results = read_results(path)
        if any(run.is_valid for run in results.runs):
            if newer := [visible(str(other)) for other in paths[:number]]:
                remark(f"left out: newer, but without a valid run: {enumerated(newer, 2)}")
            measured = f"{to_minutes(results.created_at)} UTC"
            remark(f"the newest in {RESULTS_FOLDER}: {visible(path.name)}, measured {measured}")
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


def choice_of(arguments: argparse.Namespace, contents: Sequence[Results | Baseline] = ()) -> Choice:
    """Return the options' choice of rows; raise UsageError if `contents` have no such row."""
    choice = Choice(cases=arguments.case, gpus=arguments.gpus)
    keys = [run.key for content in contents for run in content.runs]
    keys += [row.key for each in contents if isinstance(each, Baseline) for row in each.published]
    choice.validate(keys)
    return choice


def selected(content: _Content, choice: Choice) -> _Content:
    """Return a file's content with only the selected rows and the 1-GPU rows for their speedups."""

    def is_wanted(row: Run | PublishedFigure) -> bool:
        return choice.includes(row.key) or (row.gpus == 1 and row.key.is_of(choice.cases))

    kept = replace(content, runs=tuple(filter(is_wanted, content.runs)))
    if isinstance(kept, Baseline):
        kept = replace(kept, published=tuple(filter(is_wanted, kept.published)))
    return kept


def gpu_counts(text: str) -> frozenset[int]:
    """Parse the value of `--gpus`, such as `1,2,4`; raise a UsageError if it is invalid."""
    try:
        return frozenset(map(parse_count, text.split(",")))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--gpus: {error}") from None


def direction(text: str) -> tuple[str, str]:
    """Parse a value of `--better`, such as `latency=less`; return the metric and the direction."""
    name, _, way = text.partition("=")
    if not name or way not in ("more", "less"):
        raise UsageError(f"--better: '{text}' is not like throughput=more or latency=less")
    return name, way
