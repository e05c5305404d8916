"""Read and check regular files, and write files atomically."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gpuscale.base.errors import DecodeError, FileError
from gpuscale.records import Baseline, Results
from gpuscale.store.file_formats import decode_any, decode_baseline, encode_baseline

MOST_BYTES = 256 * 1024 * 1024
"""Maximum size of a file to read; 18 runs on 1024 GPUs take about 20 MB."""

_T = TypeVar("_T")

_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "name a file",
    errno.EEXIST: "it is not overwritten: choose another name, or delete it",
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EROFS: "choose another folder",
}


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error in a `with` block into a `FileError` with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the path and its permissions")
        raise FileError(path, f"{error.strerror or error}; {remedy}") from None
    except ValueError as error:
        raise FileError(path, f"{error}; check the path") from None


@contextmanager
def sole_use(folder: Path, problem: str) -> Iterator[None]:
    """Lock a folder (created if missing) in a `with` block; raise FileError(problem) if locked."""
    make_folder(folder)
    with file_errors(folder):
        lock = (folder / "lock").open("wb")
    with lock:
        lock_file(folder, lock.fileno(), problem)
        yield


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist."""
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def lock_file(path: Path, descriptor: int, problem: str) -> None:
    """Lock an open file; raise a `FileError` with `problem` if another process has locked it."""
    # Some network file systems have no locks; two processes at once are rare enough.
    with suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(path, problem) from None


def is_night_folder(name: str) -> bool:
    """True if `name` looks like a nightly run's folder, DATE_JOB, such as `2026-11-21_4711`."""
    with suppress(ValueError):
        date.fromisoformat(name[:10])
        return name[10:11] == "_"
    return False


def with_folder(path: Path, results: Results) -> Results:
    """Set the results' `folder` to the name of the file's folder if that is a nightly run's."""
    name = path.absolute().parent.name
    return replace(results, folder=name) if is_night_folder(name) else results


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; raise a `FileError` if it is missing or invalid."""
    return read_with(path, decode_baseline)


def read_any(path: Path) -> Results | Baseline:
    """Read a results file or a baseline, depending on the file's content."""
    content = read_with(path, decode_any)
    return content if isinstance(content, Baseline) else with_folder(path, content)


def read_with(path: Path, decode: Callable[[str], _T]) -> _T:
    """Read and decode a text file; raise a `FileError` with the location of any problem."""
    with file_errors(path):
        validate_readable(path)
        content = path.read_bytes()
    return decode_content(path, content, decode)


def decode_content(path: Path, content: bytes, decode: Callable[[str], _T]) -> _T:
    """Decode the content of a file; raise a `FileError` with the location of any problem."""
    try:
        return decode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte {error.start + 1}: is not UTF-8 text; unpack it, or save it as UTF-8"
        raise FileError(path, problem, line=line) from None
    except DecodeError as error:
        problem = ": ".join(filter(None, (error.place, error.problem)))
        raise FileError(path, problem, line=error.line, rows=error.rows) from None


def validate_readable(path: Path) -> None:
    """Raise a `FileError` if the file is not a regular file or is too large to be read."""
    # Opening a device can already act on it.
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        nights = "'gpuscale history' and 'gpuscale compare --history' take a folder of nights"
        raise FileError(path, f"is a folder; give one of the files in it; {nights}")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(path, "is not a regular file (a device, pipe or socket); save it first")
    if status.st_size > MOST_BYTES:
        raise FileError(path, f"is larger than the {MOST_BYTES >> 20} MiB that are read; split it")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline file atomically, replacing any earlier file."""
    try:
        text = encode_baseline(baseline)
    except DecodeError as error:
        raise FileError(path, f"cannot record this baseline: {error}") from None
    write_report(path, text)


def write_report(path: Path, content: str | bytes) -> None:
    """Write a file atomically; keep the permissions of an existing file, and follow symbolic links.

    A device or pipe (bash's `>(…)`) is written to directly, not replaced.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", errors="replace")
    with file_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
        try:
            with beside.open("xb") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
