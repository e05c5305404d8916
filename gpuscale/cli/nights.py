"""Results of many nights, and folders of nights where commands take results files."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import force_setattr

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.text import visible
from gpuscale.cli.inputs import RESULTS_NAME, each_run_once, files_below, is_folder, remark
from gpuscale.records import Configuration, Results
from gpuscale.store.campaign_folders import NIGHT_JSON, nights_folder, read_night
from gpuscale.store.results import RESULTS_FOLDER, no_results, read_results

_OF_NIGHT = re.compile(rf"{re.escape(NIGHT_JSON)}|{RESULTS_NAME.pattern}", re.DOTALL)


def read_nights(paths: Sequence[Path]) -> list[Results]:
    """Read results from files and folders, each run once; excluded nightly runs come last.

    Skip files with injected faults, and unreadable files in folders; print their names to standard
    error. Raise a FileError if no results are left, or if a file that the user named cannot be
    read.
    """
    found: list[Results] = []
    configurations: dict[Configuration, Configuration] = {}
    for path, is_named in _files(paths):
        name = visible(str(path))
        try:
            results = read_results(path)
        except FileError as error:
            if is_named:
                raise
            remark(f"left out: {error}")
            continue
        if results.injections:
            remark(f"left out: {name}: {results.why_excluded}")
        else:
            # Equal configurations share one object: copies would take most of the memory.
            for run in results.runs:
                own = run.configuration
                force_setattr(run, "configuration", configurations.setdefault(own, own))
            found.append(results)
    if not found:
        raise FileError(paths[0], "there are no results here; name the folder of the nights")
    nights = each_run_once(found)
    return sorted(nights, key=lambda results: results.left_out is not None)


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
    """Return the folder of results or, if there is none, that of the only machine's nights.

    Raise a UsageError with their names if nights of several machines exist, and a FileError if
    there are neither.
    """
    above = nights_folder(os.environ)
    inside = above.iterdir() if is_folder(above) else ()
    folders = sorted(each for each in inside if each.name[0] != "." and each.is_dir())
    if is_folder(RESULTS_FOLDER) and any(files_below(RESULTS_FOLDER, RESULTS_NAME.fullmatch)):
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
