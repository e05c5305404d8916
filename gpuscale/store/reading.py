"""Files to records: what is no regular file, too large or damaged is refused."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpuscale.errors import DecodeError, FileError
from gpuscale.formats import RESULTS_FORMAT, decode_baseline, decode_results, format_of
from gpuscale.records import Baseline, Results
from gpuscale.store.problems import READ_PROBLEMS, file_error, path_problem

MOST_BYTES = 256 * 1024 * 1024
"""The largest file that is read; a night of 18 runs on 1024 GPUs takes about 20 MB."""

_T = TypeVar("_T")


def read_results(path: Path) -> Results:
    """The results in a file.

    Raises:
        FileError: it cannot be read, or is not a results file that this gpuscale understands.
    """
    return decoded(path, _read(path), decode_results)


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        FileError: it cannot be read, or is not a baseline that this gpuscale understands.
    """
    return decoded(path, _read(path), decode_baseline)


def read_with(path: Path, decode: Callable[[str], _T]) -> _T:
    """What `decode` makes of a text file of another format.

    Raises:
        FileError: it cannot be read, or `decode` refuses it.
    """
    return decoded(path, _read(path), decode)


def read_any(path: Path) -> Results | Baseline:
    """What is in a file, told by its content and not by its name.

    Raises:
        FileError: it cannot be read, or is neither of the two formats.
    """
    return decoded(path, _read(path), _decode_either)


def _decode_either(text: str) -> Results | Baseline:
    if not text.strip():
        raise DecodeError("", "the file is empty; give a results file or a baseline")
    return decode_results(text) if format_of(text) == RESULTS_FORMAT else decode_baseline(text)


def decoded(path: Path, content: bytes, decode: Callable[[str], _T]) -> _T:
    """What the content of a file stands for.

    Raises:
        FileError: it is not text, or not what `decode` reads.
    """
    try:
        return decode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        place, line = f"byte {error.start + 1}", content.count(b"\n", 0, error.start) + 1
        problem = "is not UTF-8 text; save it as UTF-8"
        raise file_error(path, problem, place=place, line=line) from None
    except DecodeError as error:
        raise file_error(path, error.problem, place=error.place or None, line=error.line) from None


def _read(path: Path) -> bytes:
    try:
        # Told before it is opened: opening a device can already do something.
        refuse_unreadable(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return read_descriptor(path, descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise file_error(path, path_problem(error, READ_PROBLEMS)) from None


def read_descriptor(path: Path, descriptor: int) -> bytes:
    """All of an open file, from where it stands.

    Raises:
        FileError: it is no regular file, or too large.
    """
    refuse_unreadable(path, os.fstat(descriptor))
    content = read_at_most(descriptor, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _too_large(path, len(content))
    return content


def read_at_most(descriptor: int, count: int) -> bytes:
    """So many bytes of an open file, or all that there are."""
    chunks = []
    while count > 0 and (chunk := os.read(descriptor, min(count, 1024 * 1024))):
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def refuse_unreadable(path: Path, status: os.stat_result) -> None:
    """Checks that it is a regular file that is not too large.

    Raises:
        FileError: it is not.
    """
    if stat.S_ISDIR(status.st_mode):
        raise file_error(path, "is a folder; give one of the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise file_error(path, "is not a regular file (a device, pipe or socket); save it first")
    if status.st_size > MOST_BYTES:
        raise _too_large(path, status.st_size)


def _too_large(path: Path, size: int) -> FileError:
    limit = f"{MOST_BYTES // (1024 * 1024)} MiB"
    problem = f"has at least {size} bytes, more than the {limit} that are read"
    return file_error(path, f"{problem}; give fewer runs in one file")
