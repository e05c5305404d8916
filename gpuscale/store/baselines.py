"""Baseline files, written whole or not at all."""

import os
import stat
from pathlib import Path

from gpuscale.errors import DecodeError
from gpuscale.formats import encode_baseline
from gpuscale.records import Baseline
from gpuscale.store.problems import WRITE_PROBLEMS, file_error, path_problem
from gpuscale.store.replacing import replace_file


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes a baseline file whole or not at all, in place of an earlier one.

    A symbolic link stays one: the file that it leads to is replaced.

    Raises:
        FileError: the file cannot be written, or the baseline breaks the format's rules.
    """
    try:
        text = encode_baseline(baseline)
    except DecodeError as error:
        raise file_error(path, f"cannot record this baseline: {error}") from None
    try:
        target = Path(os.path.realpath(path))
        _refuse_special_target(path)
        replace_file(target, text.encode())
    except (OSError, ValueError) as error:
        raise file_error(path, path_problem(error, WRITE_PROBLEMS)) from None


def _refuse_special_target(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise file_error(path, "is a folder; give the name of a file in it")
    # Replacing a device such as /dev/null by a file would break the machine.
    if not stat.S_ISREG(mode):
        raise file_error(path, "is not a regular file; choose another path")
