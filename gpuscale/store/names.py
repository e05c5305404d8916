"""How results files are named, so that the newest one is found."""

import errno
import os
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.store.problems import READ_PROBLEMS, WRITE_PROBLEMS, file_error, path_problem

RESULTS_FOLDER = Path(".gpuscale") / "results"
"""Where results are written and looked for, below the folder in which a command is given."""
_DATED_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z-[0-9a-f]{6}\.jsonl")
_MEASURE = "measure first, for example with: pytest bench_cases --gpus 1,2"


def default_results_path(folder: Path, now: datetime) -> Path:
    """A new file name in the folder, dated in UTC: in the order of names, later is newer.

    Args:
        folder: Usually `.gpuscale/results`.
        now: With its time zone.
    """
    if now.tzinfo is None:
        raise ValueError("now has no time zone; use datetime.now(timezone.utc)")
    dated = now.astimezone(UTC)
    milliseconds = f"{dated.microsecond // 1000:03d}"
    name = f"{dated:%Y-%m-%dT%H%M%S}.{milliseconds}Z-{secrets.token_hex(3)}.jsonl"
    return folder / name


def newest_results(folder: Path) -> Path:
    """The newest of the results files that `default_results_path` named.

    Raises:
        FileError: the folder has none, or cannot be read; it says where else there are some.
    """
    try:
        dated = _dated_names(folder)
    except FileNotFoundError:
        dated = []
    except (OSError, ValueError) as error:
        raise file_error(folder, path_problem(error, READ_PROBLEMS)) from None
    if not dated:
        raise file_error(folder.absolute(), f"there are no results yet; {_remedy(folder)}")
    return folder / max(dated)


def _dated_names(folder: Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder) if entry.is_file())
    return [name for name in names if _DATED_NAME.fullmatch(name)]


def _remedy(folder: Path) -> str:
    """Where there are results after all, above a folder that has none, or how to make some."""
    for above in () if folder.is_absolute() else Path.cwd().parents:
        with suppress(OSError):
            if _dated_names(above / folder):
                return f"{above / folder} has some, so run this in {above}, or name a file"
    return _MEASURE


def refuse_unwritable(folder: Path) -> None:
    """Checks that files can be made in a folder, or the folder itself where it is not there yet.

    Nothing is made. A disk that is full is not noticed.

    Raises:
        FileError: they cannot; said before hours of measuring instead of after.
    """
    nearest = next((part for part in (folder, *folder.parents) if os.access(part, os.F_OK)), folder)
    if not nearest.is_dir():
        raise file_error(nearest, WRITE_PROBLEMS[errno.ENOTDIR])
    # Also for root, whom no permissions stop: a file system may be read-only.
    if not os.access(nearest, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(nearest).f_flag & os.ST_RDONLY)
        raise file_error(nearest, WRITE_PROBLEMS[errno.EROFS if is_read_only else errno.EACCES])
