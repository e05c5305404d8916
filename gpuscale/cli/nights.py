"""Folders of nights where commands take results files."""

import os
from pathlib import Path

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.text import counted, visible
from gpuscale.cli.inputs import RESULTS_NAME, files_below, is_folder, remark
from gpuscale.store.campaign_folders import nights_folder
from gpuscale.store.results import RESULTS_FOLDER


def results_file(path: Path) -> Path:
    """Return the path of a file or of a folder's only results file; otherwise raise a FileError."""
    files = [*files_below(path, RESULTS_NAME.fullmatch)] if is_folder(path) else [path]
    if len(files) != 1:
        raise FileError(path, f"has {counted(len(files), 'results file')}; name a single night")
    return files[0]


def default_folder() -> Path:
    """Return the folder of results or, if there is none, that of the only machine's nights.

    Raise a UsageError with their names if nights of several machines exist.
    """
    above = nights_folder(os.environ)
    has_results = is_folder(RESULTS_FOLDER) and any(
        files_below(RESULTS_FOLDER, RESULTS_NAME.fullmatch)
    )
    if has_results or not is_folder(above):
        return RESULTS_FOLDER
    folders = sorted(each for each in above.iterdir() if each.name[0] != "." and each.is_dir())
    if len(folders) > 1:
        names = ", ".join(visible(str(each)) for each in folders)
        raise UsageError(f"name the nights of one machine: {names}")
    if folders:
        remark(f"the nights below {visible(str(folders[0]))}, since no results are given")
    return folders[0] if folders else RESULTS_FOLDER
