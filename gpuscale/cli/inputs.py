"""The results files, rows and cases that a command is given, or finds for itself."""

import argparse
import gc
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from gpuscale.analysis.history import left_out_of
from gpuscale.analysis.history.night_order import doubts, yet_to_come
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.printable import visible
from gpuscale.judge.recording import results_of
from gpuscale.records import Baseline, Results, Run, without_repeated
from gpuscale.reports.phrases import age_text, counted, to_minutes
from gpuscale.store import newest_results, read_any, read_results
from gpuscale.store.files import READ_PROBLEMS, file_errors
from gpuscale.store.night_record import FIRST_ATTEMPT
from gpuscale.workload.cases import TrainingCase, validate_case

_ALONE = "; it was given alone"
_RESULTS_NAME = re.compile(r"[^.].*\.jsonl(\.gz|\.xz|\.zst)?", re.DOTALL)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Has no circles looked for among values by the hundred thousand: there are none in them.

    To look again and again takes a third of a large comparison.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_all_results(
    paths: Sequence[Path], *, or_baselines: bool = False, one_curve: bool = False
) -> list[Results]:
    """The results in some files, each run once, or those that baselines among them were made of.

    For `one_curve` none may have faults made on purpose that others do not have.
    """
    read: list[Results] = []
    for path in paths:
        content = read_any(path) if or_baselines else read_results(path)
        if isinstance(content, Baseline) and not content.runs:
            raise FileError(path, "has no measured runs; give it first, before the results")
        read += results_of(content) if isinstance(content, Baseline) else [content]
    if one_curve:
        _refuse_other_faults(paths, read)
    once = each_run_once(read)
    kept = [each for each in once if each.left_out is None]
    say_left_out(once, "" if kept else _ALONE)
    return kept or once


def say_left_out(read: Iterable[Results], remark: str = "") -> None:
    """Name the nights that somebody left out on standard error."""
    for night in left_out_of(read):
        sys.stderr.write(f"gpuscale: left out: {night}{remark}\n")


def read_content(path: Path) -> Results | Baseline:
    """The baseline in a file, or the results with each run once."""
    content = read_any(path)
    if isinstance(content, Baseline):
        return content
    say_left_out([content], _ALONE)
    return each_run_once([content])[0]


def each_run_once(read: Sequence[Results]) -> list[Results]:
    """The results without runs that came before, whose number is said on standard error."""
    once = without_repeated(read)
    left_out = sum(len(results.runs) for results in read) - sum(len(its.runs) for its in once)
    if left_out:
        sys.stderr.write(
            f"gpuscale: left out: {counted(left_out, 'repeated run')}; each counts once\n"
        )
    return once


def read_nights(paths: Sequence[Path]) -> list[Results]:
    """The results in files and below folders; each run once, though a night's bundle repeats it.

    What cannot be read of a folder, was measured with faults on purpose, or is dated in the future
    is named on standard error and left out; a file whose clock must have been wrong is named. The
    nights that somebody left out come last, for whoever names them. A FileError if nothing is left,
    or a file that was named is damaged.
    """
    names: list[str] = []
    found: list[Results] = []
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
        names.append(visible(str(path)))
        found.append(results)
    if not found:
        raise FileError(paths[0], "there are no results here; name the folder of the nights")
    files = [*zip(names, each_run_once(found), strict=True)]
    left_out = [results for _, results in files if results.left_out]
    files = [(name, results) for name, results in files if not results.left_out]
    ahead = yet_to_come(files, datetime.now(UTC))
    for name, began in ahead.items():
        problem = f"began on {began:%Y-%m-%d}, which is yet to come: was a clock wrong?"
        sys.stderr.write(f"gpuscale: left out: {name}: {problem}\n")
    files = [(name, results) for name, results in files if name not in ahead]
    for doubt in doubts(files):
        sys.stderr.write(f"gpuscale: {doubt}\n")
    return [*(results for _, results in files), *left_out]


def results_file(path: Path) -> Path:
    """The results file itself, or the only one below a night's folder."""
    files = [*_below(path)] if is_folder(path) else [path]
    if len(files) != 1:
        raise FileError(path, f"has {counted(len(files), 'results file')}; name a single night")
    return files[0]


def is_folder(path: Path) -> bool:
    """True for a folder; a FileError where that cannot be told."""
    with file_errors(path, READ_PROBLEMS):
        return path.is_dir()


def _files(paths: Sequence[Path]) -> Iterable[tuple[Path, bool]]:
    """The results files, each once, and True for those that were named themselves."""
    folders = [path for path in paths if is_folder(path)]
    found = [(path, True) for path in paths if path not in folders]
    found += [(file, False) for folder in folders for file in sorted(_below(folder))]
    # A night's report names its results and the folder that they lie in.
    once: dict[str, tuple[Path, bool]] = {}
    for each in found:
        once.setdefault(os.path.realpath(each[0]), each)
    return once.values()


def _below(folder: Path) -> Iterator[Path]:
    """The results files below a folder, behind links too; packed ones are refused when read.

    What a night's first attempt measured beside a fault is no night.
    """
    # A link may lead to where this was already, or back out.
    seen = {str(above) for above in Path(os.path.realpath(folder)).parents}
    for here, folders, names in os.walk(folder, onerror=_leave_out, followlinks=True):
        if (place := os.path.realpath(here)) in seen:
            folders.clear()
            continue
        seen.add(place)
        wanted = (name for name in folders if name != FIRST_ATTEMPT and name[0] != ".")
        folders[:] = sorted(wanted)
        yield from (Path(here, name) for name in names if _RESULTS_NAME.fullmatch(name))


def _leave_out(problem: OSError) -> None:
    """Name a folder that cannot be read on standard error."""
    try:
        with file_errors(Path(problem.filename), READ_PROBLEMS):
            raise problem
    except FileError as told:
        sys.stderr.write(f"gpuscale: left out: {told}\n")


def newest_valid(folder: Path, now: datetime) -> Path:
    """The newest results with a valid run, or the newest if no results have one.

    Newer ones, of a session that failed or has only begun, are named on standard error.
    """
    paths = newest_results(folder, now)
    for number, path in enumerate(paths):
        if any(run.is_valid for run in read_results(path).runs):
            newer = ", ".join(visible(str(other)) for other in paths[:number])
            if newer:
                sys.stderr.write(f"gpuscale: left out: newer, but without a valid run: {newer}\n")
            return path
    return paths[0]


def newest_input(folder: Path) -> Path:
    """The newest valid results, named on standard error: they were not the user's own choice.

    If no results have a valid run, that is said too.
    """
    now = datetime.now(UTC)
    path = newest_valid(folder, now)
    results = read_results(path)
    measured = f"{to_minutes(results.created_at)} UTC{age_text(results, now)}"
    newest = f"{visible(str(path))}, measured {measured}"
    said = f"the newest results: {newest}"
    if not any(run.is_valid for run in results.runs):
        said = f"the newest results, {newest}, have no valid run; name those that are meant"
    sys.stderr.write(f"gpuscale: {said}\n")
    return path


def is_same(path: Path, other: Path) -> bool:
    """True where two paths lead to one file, there or not yet."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        # At least one is not there yet.
        return path.absolute() == other.absolute()


def refuse_as_output(path: Path, inputs: Sequence[Path]) -> None:
    """Refuses an input as the file of `-o`."""
    if any(is_same(path, other) for other in inputs):
        raise UsageError(f"-o: {visible(str(path))} is an input and is not overwritten")


def refuse_as_both_sides(before: Path, after: Sequence[Path]) -> None:
    """Refuses to compare a file with itself."""
    if any(is_same(before, path) for path in after):
        raise UsageError(f"{visible(str(before))} is given as both sides; name another file")


def _refuse_other_faults(paths: Sequence[Path], results: Sequence[Results]) -> None:
    """Refuses to pool results with faults made on purpose with those without, or with others."""
    for path, its in zip(paths, results, strict=False):
        if its.injections != results[0].injections:
            faults = [", ".join(each.injections) or "none" for each in (results[0], its)]
            problem = (
                f"its faults made on purpose: {faults[1]}; those of {visible(str(paths[0]))}: "
                f"{faults[0]}; together they make no curve: give one of them as --baseline"
            )
            raise FileError(path, problem)


def add_selection(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add which rows a command takes."""
    text = f"{verb} only these numbers of GPUs (default: all)"
    parser.add_argument("--gpus", metavar="N,N,…", type=gpu_counts, help=text)
    text = f"{verb} only this case; may be given several times (default: all)"
    parser.add_argument("--case", metavar="CASE[/STRATEGY]", action="append", help=text)


def selected(
    results: Sequence[Results],
    *,
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> list[Results]:
    """The results with what was selected of their runs, and those on 1 GPU, which speedups need."""

    def is_wanted(run: Run) -> bool:
        names = {run.key.case, f"{run.key.case}/{run.key.strategy}"}
        return (cases is None or bool(names & {*cases})) and (
            gpus is None or run.gpus in {1, *gpus}
        )

    return [replace(its, runs=tuple(filter(is_wanted, its.runs))) for its in results]


def gpu_counts(text: str, option: str = "--gpus") -> frozenset[int]:
    """The numbers that `--gpus 1,2,4`, or another option, names."""
    try:
        counts = frozenset(int(part) for part in text.split(","))
    except ValueError:
        counts = frozenset()
    if not counts or min(counts) < 1:
        raise UsageError(f"{option}: '{text}' is not a list of numbers above 0, such as 1,2,4")
    return counts


def case_class(file: str, name: str = "") -> type[TrainingCase]:
    """The case of that name in a Python file; without a name the only one."""
    path = Path(file).absolute()
    if not path.is_file() or path.suffix != ".py":
        problem = f"{file} is not a Python file" if path.is_file() else f"there is no file {file}"
        raise UsageError(f"{problem}; give FILE::Class")
    # As pytest does it, so that a case finds what lies beside it.
    sys.path.insert(0, str(path.parent))
    sys.modules.pop(path.stem, None)
    try:
        module = import_module(path.stem)
    except Exception as error:
        # Any line of the user's file may raise anything; it is the file that is to be mended.
        raise UsageError(
            f"{file} cannot be imported ({type(error).__name__}: {error}); "
            "run it with python to see where"
        ) from None
    classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    cases = {key: its for key, its in classes.items() if issubclass(its, TrainingCase)}
    known = {key: case for key, case in cases.items() if case.__module__ == path.stem}
    if not name and len(known) == 1:
        (name,) = known
    if name not in known:
        found = ", ".join(f"{file}::{key}" for key in known) or "none"
        raise UsageError(f"name a case in {file} as FILE::Class; there is {found}")
    validate_case(known[name])
    return known[name]
