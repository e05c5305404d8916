"""What a file system may answer, each with its remedy."""

import errno
import os
from pathlib import Path

from gpuscale.errors import FileError
from gpuscale.formats.text import visible

READ_PROBLEMS = {
    errno.ENOENT: "there is no such file; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; check the path",
    errno.EACCES: "permission denied; make it readable for this user",
    errno.ELOOP: "its symbolic links lead in a circle; give the file itself",
    errno.ENAMETOOLONG: "the path is too long for this system; check it",
}
WRITE_PROBLEMS = {
    errno.ENOENT: "its folder does not exist; create the folder first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "this is a folder; name a file",
    errno.EEXIST: "exists already and is not overwritten; choose another name, or delete it",
    errno.EACCES: "permission denied; choose a folder that this user may write to",
    errno.EPERM: "not permitted; choose a folder that this user may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space, or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another folder",
    errno.EFBIG: "the file may not grow further (a limit of this system or shell, ulimit -f)",
    errno.ELOOP: "its symbolic links lead in a circle; give the file itself",
    errno.ENAMETOOLONG: "the path is too long for this system; choose a shorter one",
}
RESUME_PROBLEMS = {
    **WRITE_PROBLEMS,
    errno.ENOENT: "there is no such file; check the path, or begin it with --results",
    errno.EACCES: "permission denied; make it readable and writable for this user",
}


def path_problem(error: OSError | ValueError, known: dict[int, str]) -> str:
    """What went wrong with a path and its remedy, from one of the tables above."""
    if isinstance(error, OSError) and error.errno is not None:
        default = f"{os.strerror(error.errno)}; check the path and its file system"
        return known.get(error.errno, default)
    return f"{error}; check the path"


def file_error(
    path: Path, problem: str, *, place: str | None = None, line: int | None = None
) -> FileError:
    """The error that the user sees, safe to print whatever the path holds."""
    return FileError(
        visible(str(path)), visible(problem), place=place and visible(place), line=line
    )
