"""Files that hold what a comparison said, for other programs to pick up."""

import os
import stat
from pathlib import Path

from gpuscale.store.problems import WRITE_PROBLEMS, file_error, path_problem
from gpuscale.store.replacing import replace_file


def write_report(path: Path, text: str) -> None:
    """Writes a report, in place of an earlier one; a reader never sees half of it.

    A device or pipe (`/dev/stderr`, bash's `>(…)`) is written to and stays what it is; of a
    symbolic link, the file that it leads to is replaced.

    Raises:
        FileError: it could not be written; an earlier file is as it was.
    """
    content = text.encode("utf-8", errors="replace")
    try:
        if _is_stream(path):
            with path.open("wb") as stream:
                stream.write(content)
        else:
            replace_file(Path(os.path.realpath(path)), content)
    except (OSError, ValueError) as error:
        raise file_error(path, path_problem(error, WRITE_PROBLEMS)) from None


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
