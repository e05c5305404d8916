"""Read and write whole files: damaged or special files are refused, and writes are atomic."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from gpuscale.base.errors import DecodeError, FileError
from gpuscale.base.printable import escaped
from gpuscale.records import Baseline, Results
from gpuscale.store.codec import decode_any, decode_baseline, encode_baseline

MOST_BYTES = 256 * 1024 * 1024
"""Maximum size of a file to read; 18 runs on 1024 GPUs take about 20 MB."""

_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""First bytes of gzip, xz, zstd and zip files; spreadsheets are zip files."""

_T = TypeVar("_T")

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


@contextmanager
def file_errors(path: Path, known: Mapping[int, str] = WRITE_PROBLEMS) -> Iterator[None]:
    """Turn an operating-system error in a `with` block into a `FileError`, worded as in `known`."""
    try:
        yield
    except (OSError, ValueError) as error:
        problem = f"{error}; check the path"
        if isinstance(error, OSError) and error.errno is not None:
            default = f"{os.strerror(error.errno)}; check the path and its file system"
            problem = known.get(error.errno, default)
        raise file_error(path, problem) from None


def file_error(
    path: Path, problem: str, *, place: str | None = None, line: int | None = None
) -> FileError:
    """Return a `FileError` with all unprintable characters escaped."""
    path_shown, problem, place_shown = map(escaped, (str(path), problem, place or ""))
    return FileError(path_shown, problem, place=place_shown or None, line=line)


@contextmanager
def sole_use(folder: Path, problem: str) -> Iterator[None]:
    """Make a folder and lock it; raise a `FileError` with the problem if another process did."""
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("wb")
    with lock:
        lock_file(folder, lock.fileno(), problem)
        yield


def lock_file(path: Path, descriptor: int, problem: str) -> None:
    """Lock an open file; raise a `FileError` with the problem if another process has locked it."""
    # Some network file systems have no locks; two processes at once are rare enough.
    with suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise file_error(path, problem) from None


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; raise a `FileError` if it is missing or invalid."""
    return read_with(path, decode_baseline)


def read_any(path: Path) -> Results | Baseline:
    """Read a results file or a baseline, depending on the file's content."""
    return read_with(path, decode_any)


def read_with(path: Path, decode: Callable[[str], _T]) -> _T:
    """Read and decode a text file; raise a `FileError` with the location of any problem."""
    with file_errors(path, READ_PROBLEMS):
        # Checked before opening, which can already act on a device.
        validate_readable(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            content = read_descriptor(path, descriptor)
        finally:
            os.close(descriptor)
    return decode_content(path, content, decode)


def decode_content(path: Path, content: bytes, decode: Callable[[str], _T]) -> _T:
    """Decode the content of a file; raise a `FileError` with the location of any problem."""
    if content.startswith(_PACKED):
        raise file_error(path, "is packed or a spreadsheet, not text; unpack it, or save it as CSV")
    try:
        return decode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        place, line = f"byte {error.start + 1}", content.count(b"\n", 0, error.start) + 1
        problem = "is not UTF-8 text; save it as UTF-8"
        raise file_error(path, problem, place=place, line=line) from None
    except DecodeError as error:
        raise file_error(path, error.problem, place=error.place or None, line=error.line) from None


def read_descriptor(path: Path, descriptor: int) -> bytes:
    """Read an open file from the current position to the end."""
    validate_readable(path, os.fstat(descriptor))
    content = bytearray()
    while len(content) <= MOST_BYTES and (chunk := os.read(descriptor, 1024 * 1024)):
        content += chunk
    _validate_size(path, len(content))
    return bytes(content)


def validate_readable(path: Path, status: os.stat_result) -> None:
    """Raise a `FileError` if the file is not a regular file or is too large to be read."""
    if stat.S_ISDIR(status.st_mode):
        raise file_error(path, "is a folder; give one of the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise file_error(path, "is not a regular file (a device, pipe or socket); save it first")
    _validate_size(path, status.st_size)


def _validate_size(path: Path, size: int) -> None:
    if size > MOST_BYTES:
        problem = f"has at least {size} bytes, more than the {MOST_BYTES >> 20} MiB that are read"
        raise file_error(path, f"{problem}; give fewer runs in one file")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline file atomically, replacing any earlier file."""
    try:
        text = encode_baseline(baseline)
    except DecodeError as error:
        raise file_error(path, f"cannot record this baseline: {error}") from None
    with file_errors(path):
        # Replacing a device such as /dev/null by a file would break the machine.
        if _is_device(path):
            raise file_error(path, "is not a regular file; choose another path")
        replace_file(path, text.encode())


def write_report(path: Path, text: str) -> None:
    """Write text in UTF-8 to a file, a device or a pipe."""
    write_content(path, text.encode("utf-8", errors="replace"))


def write_content(path: Path, content: bytes) -> None:
    """Write a file atomically; write to a device or pipe (bash's `>(…)`) without replacing it."""
    with file_errors(path):
        if _is_device(path):
            with path.open("wb") as stream:
                stream.write(content)
        else:
            replace_file(path, content)


def _is_device(path: Path) -> bool:
    """True if the path is an existing device, pipe or socket."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically; keep an existing file's permissions and symbolic links to it."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries to disk, if the file system supports it."""
    # Some network file systems refuse this; a file name that a power cut could erase is no reason
    # to stop measuring.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
